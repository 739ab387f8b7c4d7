// Where a batch lies in device memory; addresses are computed, no device is needed.
#include "server/cuda_layout.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/engine_requests.h"

namespace attnd {
namespace {

constexpr std::int64_t kArenaBytes = std::int64_t{16} << 20;
// Never read: any address that is far from host memory in use.
std::byte* const kArena = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 44);

std::int64_t OffsetOf(const void* address) {
  return static_cast<const std::byte*>(address) - kArena;
}

// What the device would find at [offset, offset + size): put together from the inputs.
std::vector<std::byte> Uploaded(const CudaLayout& layout, std::int64_t offset, std::int64_t size) {
  for (const ArenaInput& input : layout.inputs) {
    if (offset < input.offset || offset + size > input.offset + input.size_bytes) continue;
    std::vector<std::byte> all;
    if (input.slice.tensor == nullptr) {
      all.assign(input.host, input.host + input.size_bytes);
    } else {
      std::vector<std::byte> tensor;
      for (const ByteRange& piece : input.slice.tensor->pieces) {
        tensor.insert(tensor.end(), piece.data, piece.data + piece.size);
      }
      all.assign(tensor.begin() + input.slice.offset_bytes,
                 tensor.begin() + input.slice.offset_bytes + input.size_bytes);
    }
    const auto begin = all.begin() + (offset - input.offset);
    return {begin, begin + size};
  }
  return {};
}

template <class T>
T UploadedValue(const CudaLayout& layout, const T* address) {
  T value{};
  const std::vector<std::byte> bytes = Uploaded(layout, OffsetOf(address), sizeof(T));
  EXPECT_EQ(bytes.size(), sizeof(T)) << "nothing is copied to offset " << OffsetOf(address);
  if (bytes.size() == sizeof(T)) std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

std::vector<float> Count(std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  return values;
}

// One Attend of 6 queries and 8 keys, 2 heads of 32, whose elements count up.
class CudaLayoutTest : public ::testing::Test {
 protected:
  CudaLayoutTest() : request_(MakeAttend({2, 2, 32}, 6, 8)) {
    request_.return_lse = true;
    request_.q = MakeTensor(Count(6 * 64), {6, 2, 32});
    request_.k = MakeTensor(Count(8 * 64), {8, 2, 32});
    request_.options.alibi_slopes = {0.5F, 0.25F};
    outputs_ = AllocateOutputs(request_, 6);
    options_ = ResolveOptions(request_.options, 32);
    batch_.shape = {kernels::DataType::kFp32, kernels::DataType::kFp32, 2, 2, 32};
    AddItem();
  }
  void AddItem() {
    PackAttend(request_, request_.attend_sequences[0], options_, {0, 0, 0, 6}, outputs_, staged_,
               batch_.items.emplace_back());
  }
  bool Lay(const std::vector<ItemSpan>& spans, std::int64_t arena_bytes = kArenaBytes) {
    return LayOut(batch_, spans, kArena, arena_bytes, layout_);
  }

  AttentionRequest request_;
  RequestOutputs outputs_;
  ResolvedOptions options_;
  StagedTensors staged_;
  Batch batch_;
  CudaLayout layout_;
};

TEST_F(CudaLayoutTest, PointersFindTheTensorsInTheArena) {
  ASSERT_TRUE(Lay(WholeItems(batch_)));
  ASSERT_EQ(layout_.sequences.size(), 1U);
  const kernels::AttentionSequence& sequence = layout_.sequences[0];
  const auto* q = static_cast<const float*>(sequence.q);
  EXPECT_EQ(UploadedValue(layout_, q), 0);
  EXPECT_EQ(UploadedValue(layout_, q + 6 * 64 - 1), 6 * 64 - 1);
  EXPECT_EQ(UploadedValue(layout_, static_cast<const float*>(sequence.kv.k) + 8 * 64 - 1),
            8 * 64 - 1);
  EXPECT_EQ(UploadedValue(layout_, sequence.alibi_slopes + 1), 0.25F);
}

TEST_F(CudaLayoutTest, InputsAndOutputsAreAlignedAndApart) {
  AddItem();
  ASSERT_TRUE(Lay(WholeItems(batch_)));
  std::int64_t end = 0;
  for (const ArenaInput& input : layout_.inputs) {
    EXPECT_EQ(input.offset % CudaLayout::kAlignment, 0);
    EXPECT_GE(input.offset, end);
    end = input.offset + input.size_bytes;
  }
  EXPECT_EQ(end, layout_.inputs_end);
  EXPECT_LE(end, layout_.outputs_begin);
  end = layout_.outputs_begin;
  for (const ArenaOutput& output : layout_.outputs) {
    EXPECT_EQ(output.offset % CudaLayout::kAlignment, 0);
    EXPECT_GE(output.offset, end);
    end = output.offset + output.size_bytes;
  }
  EXPECT_LE(end, layout_.outputs_end);
  EXPECT_LE(layout_.outputs_end, kArenaBytes);
}

TEST_F(CudaLayoutTest, OutputsGoWhereTheReplyWantsThem) {
  ASSERT_TRUE(Lay(WholeItems(batch_)));
  ASSERT_EQ(layout_.outputs.size(), 2U);
  EXPECT_EQ(layout_.outputs[0].to, outputs_.o.data.get());
  EXPECT_EQ(layout_.outputs[0].size_bytes, 6 * 64 * 4);
  EXPECT_EQ(layout_.outputs[0].offset, OffsetOf(layout_.sequences[0].o));
  EXPECT_EQ(layout_.outputs[1].to, outputs_.lse.data.get());
  EXPECT_EQ(layout_.outputs[1].size_bytes, 6 * 2 * 4);
  EXPECT_EQ(layout_.outputs[1].offset, OffsetOf(layout_.sequences[0].lse));
}

TEST_F(CudaLayoutTest, OptionValuesThatItemsShareAreCopiedOnce) {
  AddItem();
  ASSERT_TRUE(Lay(WholeItems(batch_)));
  EXPECT_EQ(layout_.sequences[0].alibi_slopes, layout_.sequences[1].alibi_slopes);
  EXPECT_NE(layout_.sequences[0].q, layout_.sequences[1].q);
}

TEST_F(CudaLayoutTest, ASpanTakesItsRowsOnly) {
  ASSERT_TRUE(Lay({{0, 2, 3}}));
  const kernels::AttentionSequence& sequence = layout_.sequences[0];
  EXPECT_EQ(sequence.query_length, 3);
  EXPECT_EQ(sequence.query_position, batch_.items[0].attention.query_position + 2);
  EXPECT_EQ(sequence.kv_length, 8);
  EXPECT_EQ(UploadedValue(layout_, static_cast<const float*>(sequence.q)), 2 * 64);
  EXPECT_EQ(layout_.outputs[0].to, outputs_.o.data.get() + 2 * 64 * 4);
  EXPECT_EQ(layout_.outputs[0].size_bytes, 3 * 64 * 4);
  EXPECT_EQ(layout_.outputs[1].to, outputs_.lse.data.get() + 2 * 2 * 4);
}

TEST_F(CudaLayoutTest, BiasRowsFollowTheSpan) {
  request_.bias = MakeTensor(Count(6 * 8), {1, 6, 8});
  batch_.items.clear();
  AddItem();
  ASSERT_TRUE(Lay({{0, 2, 3}}));
  EXPECT_EQ(UploadedValue(layout_, layout_.sequences[0].bias), 2 * 8);
}

TEST_F(CudaLayoutTest, WhatDoesNotFitIsRefused) {
  ASSERT_TRUE(Lay(WholeItems(batch_)));
  const std::int64_t needed = layout_.inputs_end + layout_.outputs_end - layout_.outputs_begin;
  EXPECT_FALSE(Lay(WholeItems(batch_), needed - 1024));
  EXPECT_TRUE(Lay(WholeItems(batch_), needed + 1024));
}

// A Decode item of 4 new tokens on a paged layer, rotated.
class DecodeLayoutTest : public ::testing::Test {
 protected:
  DecodeLayoutTest() {
    request_.kind = RequestKind::kDecode;
    request_.num_heads = 4;
    request_.num_kv_heads = 2;
    request_.head_dim = 32;
    request_.q = MakeTensor(Count(4 * 128), {4, 4, 32});
    request_.k = MakeTensor(Count(4 * 64), {4, 2, 32});
    request_.v = MakeTensor(Count(4 * 64), {4, 2, 32});
    batch_.shape = {kernels::DataType::kFp32, kernels::DataType::kFp32, 4, 2, 32, 16};
    outputs_ = AllocateOutputs(request_, 4);
    rope_.theta = 10000;
    rope_.rotary_dim = 32;
    rope_.inverse_frequencies = Count(16);
    StepView view;
    view.query_position = view.append_position = 30;
    view.visible_end = 34;
    view.appends = true;
    PackStep(request_, batch_.shape, ResolveOptions({}, 32), ResolveRope(rope_), {0, 0, 0, 4}, view,
             outputs_, batch_.items.emplace_back());
    batch_.page_tables = {7, 8, 9};
    batch_.BindPageTables();
  }
  AttentionRequest request_;
  RequestOutputs outputs_;
  RopeOptionValues rope_;
  Batch batch_;
  CudaLayout layout_;
};

TEST_F(DecodeLayoutTest, PageTablesAndFrequenciesMoveAlong) {
  ASSERT_TRUE(LayOut(batch_, WholeItems(batch_), kArena, kArenaBytes, layout_));
  ASSERT_EQ(layout_.appends.size(), 1U);
  EXPECT_EQ(UploadedValue(layout_, layout_.appends[0].page_table + 2), 9U);
  EXPECT_EQ(layout_.sequences[0].kv.page_table, layout_.appends[0].page_table);
  EXPECT_EQ(UploadedValue(layout_, layout_.appends[0].rope.inverse_frequencies + 15), 15);
  ASSERT_EQ(layout_.rotations.size(), 1U);
  EXPECT_EQ(layout_.rotations[0].q, layout_.sequences[0].q);
  EXPECT_EQ(layout_.rotations[0].first_position, 30);
  EXPECT_EQ(layout_.rotations[0].num_tokens, 4);
}

// One launch rotates them all: each knows where its rows begin among those of all.
TEST_F(DecodeLayoutTest, RotationsCountTheRowsBeforeThem) {
  StepView view;
  view.query_position = view.append_position = 50;
  view.visible_end = 54;
  view.appends = true;
  PackStep(request_, batch_.shape, ResolveOptions({}, 32), {}, {0, 0, 0, 4}, view, outputs_,
           batch_.items.emplace_back());  // without a rotation
  PackStep(request_, batch_.shape, ResolveOptions({}, 32), ResolveRope(rope_), {0, 0, 0, 4}, view,
           outputs_, batch_.items.emplace_back());
  batch_.page_tables = {7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17};
  batch_.BindPageTables();
  ASSERT_TRUE(LayOut(batch_, WholeItems(batch_), kArena, kArenaBytes, layout_));
  ASSERT_EQ(layout_.sequences.size(), 3U);
  ASSERT_EQ(layout_.rotations.size(), 2U);
  EXPECT_EQ(layout_.rotations[0].first_row, 0);
  EXPECT_EQ(layout_.rotations[1].first_row, 4);
  EXPECT_EQ(layout_.rotations[1].first_position, 50);
  EXPECT_EQ(layout_.rotations[1].q, layout_.sequences[2].q);
  // A launch of its own counts anew.
  ASSERT_TRUE(LayOut(batch_, std::vector<ItemSpan>{{2, 1, 2}}, kArena, kArenaBytes, layout_));
  EXPECT_EQ(layout_.rotations[0].first_row, 0);
  EXPECT_EQ(layout_.rotations[0].num_tokens, 2);
}

// The second launch's tokens are not in the cache when the first one attends.
TEST_F(DecodeLayoutTest, ASpanAppendsItsTokensAndSeesNoLaterOnes) {
  ASSERT_TRUE(LayOut(batch_, std::vector<ItemSpan>{{0, 1, 2}}, kArena, kArenaBytes, layout_));
  const kernels::AppendSequence& append = layout_.appends[0];
  EXPECT_EQ(append.num_tokens, 2);
  EXPECT_EQ(append.first_token, 31);
  EXPECT_EQ(append.first_position, 31);
  EXPECT_EQ(UploadedValue(layout_, static_cast<const float*>(append.v)), 64);
  EXPECT_EQ(layout_.sequences[0].kv_length, 33);
  EXPECT_EQ(layout_.sequences[0].query_position, 31);
  EXPECT_EQ(layout_.rotations[0].first_position, 31);
}

TEST(HalveSpansTest, HalvesItemsThenRows) {
  std::vector<ItemSpan> first;
  std::vector<ItemSpan> second;
  const std::vector<ItemSpan> three = {{0, 0, 5}, {1, 0, 5}, {2, 0, 5}};
  ASSERT_TRUE(HalveSpans(three, first, second));
  EXPECT_EQ(first.size(), 1U);
  EXPECT_EQ(second.size(), 2U);
  EXPECT_EQ(second[0].item, 1);
  ASSERT_TRUE(HalveSpans(std::vector<ItemSpan>{{2, 4, 5}}, first, second));
  EXPECT_EQ(first[0].first_row, 4);
  EXPECT_EQ(first[0].rows, 2);
  EXPECT_EQ(second[0].first_row, 6);
  EXPECT_EQ(second[0].rows, 3);
  EXPECT_FALSE(HalveSpans(std::vector<ItemSpan>{{2, 4, 1}}, first, second));
}

}  // namespace
}  // namespace attnd
