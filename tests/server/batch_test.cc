// Packing: where each item reads and writes.
#include "server/batch.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/engine_requests.h"

namespace attnd {
namespace {

constexpr std::int64_t kFloat = 4;

TEST(BatchTest, AttendChunkPointsAtItsRows) {
  const HeadShape shape{4, 2, 40};
  AttentionRequest request = MakeAttend(shape, 30, 50);
  request.return_lse = true;
  request.options.causal = true;
  const RequestOutputs outputs = AllocateOutputs(request, 30);
  const ResolvedOptions options = ResolveOptions(request.options, 40);
  StagedTensors staged;
  BatchItem item;
  PackAttend(request, {20, 45, 25, 0}, options, {10, 5, 8, 6}, outputs, staged, item);
  EXPECT_EQ(item.q.offset_bytes, 18 * 4 * 40 * kFloat);
  EXPECT_EQ(item.q.size_bytes, 6 * 4 * 40 * kFloat);
  EXPECT_EQ(item.k.offset_bytes, 5 * 2 * 40 * kFloat);
  EXPECT_EQ(item.k.size_bytes, 45 * 2 * 40 * kFloat);
  EXPECT_EQ(item.attention.o, outputs.o.data.get() + 18 * 4 * 40 * kFloat);
  EXPECT_EQ(item.attention.lse, reinterpret_cast<float*>(outputs.lse.data.get()) + 18 * 4);
  EXPECT_EQ(item.attention.query_length, 6);
  EXPECT_EQ(item.attention.query_position, 33);
  EXPECT_EQ(item.attention.kv_length, 45);
  EXPECT_TRUE(item.attention.causal);
  EXPECT_EQ(item.staged, &staged);  // more chunks read the same keys
}

TEST(BatchTest, WholeAttendSequenceKeepsNoStaging) {
  const AttentionRequest request = MakeAttend({}, 4, 8);
  StagedTensors staged;
  BatchItem item;
  PackAttend(request, {4, 8, 4, 0}, ResolveOptions({}, 32), {0, 0, 0, 4},
             AllocateOutputs(request, 4), staged, item);
  EXPECT_EQ(item.staged, nullptr);
}

TEST(BatchTest, BiasRowsFollowTheChunk) {
  AttentionRequest request = MakeAttend({}, 10, 20);
  request.bias = MakeTensor(std::vector<float>(2 * 10 * 20), {2, 10, 20});
  StagedTensors staged;
  BatchItem item;
  const auto pack = [&] {
    PackAttend(request, request.attend_sequences[0], ResolveOptions({}, 32), {0, 0, 6, 4},
               AllocateOutputs(request, 10), staged, item);
  };
  pack();
  EXPECT_EQ(item.bias_first_row, 6);
  EXPECT_EQ(item.attention.bias_row_stride, 20);
  EXPECT_EQ(item.attention.bias_head_stride, 200);
  request.bias.shape[0] = 1;
  pack();
  EXPECT_EQ(item.attention.bias_head_stride, 0);
}

TEST(BatchTest, StepCountsTokensFromTheFirstPageItStillHas) {
  const AttentionRequest request = MakeDecode({}, {MakeStep("", 100, 8)});
  ShapeClass shape;
  shape.num_heads = 2;
  shape.num_kv_heads = 1;
  shape.head_dim = 32;
  StepView view;
  view.query_position = view.append_position = 103;
  view.first_page_token = 64;
  view.visible_end = 106;
  view.appends = true;
  BatchItem item;
  PackStep(request, shape, {}, {}, {0, 0, 3, 3}, view, AllocateOutputs(request, 8), item);
  EXPECT_EQ(item.attention.key_position, 64);
  EXPECT_EQ(item.attention.kv_length, 42);
  EXPECT_EQ(item.attention.query_position, 103);
  EXPECT_EQ(item.append.first_token, 39);
  EXPECT_EQ(item.append.first_position, 103);
  EXPECT_EQ(item.append.num_tokens, 3);
  EXPECT_EQ(item.k.offset_bytes, 3 * 32 * kFloat);
}

TEST(BatchTest, PageTablesAreBoundAfterTheLastItem) {
  Batch batch;
  batch.shape.page_tokens = 16;
  for (std::uint32_t i = 0; i < 100; ++i) {  // the table moves while it grows
    batch.items.emplace_back().page_table_offset = batch.page_tables.size();
    batch.page_tables.push_back(i);
  }
  batch.BindPageTables();
  for (std::uint32_t i = 0; i < 100; ++i) {
    EXPECT_EQ(batch.items[i].attention.kv.page_table[0], i);
    EXPECT_EQ(batch.items[i].append.page_table[0], i);
  }
  batch.Reset();
  EXPECT_TRUE(batch.items.empty());
}

TEST(BatchTest, OptionsBecomeKindsAndDefaults) {
  AttentionOptionValues values;
  EXPECT_FLOAT_EQ(ResolveOptions(values, 64).softmax_scale, 0.125F);
  EXPECT_EQ(ResolveOptions(values, 64).feature_kinds, 0U);
  values.softmax_scale = 0.0F;
  values.window_left = 0;
  values.alibi_slopes = {1, 2};
  values.sink_logits = {0, 0};
  const ResolvedOptions options = ResolveOptions(values, 64);
  EXPECT_EQ(options.softmax_scale, 0.0F);
  EXPECT_EQ(options.window_left, 0);
  EXPECT_EQ(options.feature_kinds,
            kernels::kFeatureWindow | kernels::kFeatureAlibi | kernels::kFeatureSinks);
  values.causal = true;
  values.window_right = 3;
  EXPECT_EQ(ResolveOptions(values, 64).window_right, kernels::kUnlimitedWindow);
}

TEST(BatchTest, PartialOutputsAreFp32WithLse) {
  AttentionRequest request = MakeAttend({2, 1, 32}, 3, 3);
  request.data_type = kernels::DataType::kBf16;
  EXPECT_EQ(AllocateOutputs(request, 3).o.size_bytes, 3 * 2 * 32 * 2);
  EXPECT_EQ(AllocateOutputs(request, 3).lse.size_bytes, 0);
  request.partial = true;
  EXPECT_EQ(AllocateOutputs(request, 3).o.size_bytes, 3 * 2 * 32 * 4);
  EXPECT_EQ(AllocateOutputs(request, 3).lse.size_bytes, 3 * 2 * 4);
}

TEST(BatchTest, EmptyRowsAreWrittenAndNoOthers) {
  AttentionRequest request = MakeAttend({2, 1, 32}, 4, 4);
  request.return_lse = true;
  const RequestOutputs outputs = AllocateOutputs(request, 4);
  std::fill_n(reinterpret_cast<float*>(outputs.o.data.get()), 4 * 64, 7.0F);
  std::fill_n(reinterpret_cast<float*>(outputs.lse.data.get()), 4 * 2, 7.0F);
  FillEmptyRows(outputs, 1, 2);
  const auto o = Floats(outputs.o);
  const auto lse = Floats(outputs.lse);
  for (std::size_t i = 0; i < o.size(); ++i) {
    ASSERT_EQ(o[i], i / 64 == 1 || i / 64 == 2 ? 0.0F : 7.0F);
  }
  for (std::size_t i = 0; i < lse.size(); ++i) {
    ASSERT_EQ(lse[i], i / 2 == 1 || i / 2 == 2 ? -INFINITY : 7.0F);
  }
}

TEST(BatchTest, EveryFloatClassHasARow) {
  kernels::DeviceLimits device;
  device.cpu_target = kernels::CpuTarget::kScalar;
  for (const auto operation : {kernels::Operation::kPrefill, kernels::Operation::kDecode}) {
    for (const auto type :
         {kernels::DataType::kFp32, kernels::DataType::kFp16, kernels::DataType::kBf16}) {
      ShapeClass shape;
      shape.data_type = shape.kv_data_type = type;
      shape.num_heads = shape.num_kv_heads = 1;
      shape.head_dim = 256;
      shape.page_tokens = 16;
      shape.operation = operation;
      shape.partial = true;
      EXPECT_NE(FindRow(shape, device), nullptr);
      shape.head_dim = 257;
      EXPECT_EQ(FindRow(shape, device), nullptr);
    }
  }
}

}  // namespace
}  // namespace attnd
