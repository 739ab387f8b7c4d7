// The cost model against counts done by hand.
#include "kernels/kernel_cost.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/attention_kernels.h"

namespace attnd::kernels {
namespace {

const KernelRow& Row(const char* name) { return *FindKernelByName(name); }

AttentionSequence Causal(int query_length, std::int64_t kv_length) {
  AttentionSequence sequence;
  sequence.query_length = query_length;
  sequence.kv_length = kv_length;
  sequence.query_position = kv_length - query_length;
  sequence.causal = true;
  return sequence;
}

AttentionParams Params(const AttentionSequence& sequence) {
  AttentionParams params;
  params.data_type = params.kv_data_type = DataType::kBf16;
  params.num_heads = 32;
  params.num_kv_heads = 8;
  params.head_dim = 128;
  params.sequences = &sequence;
  params.num_sequences = 1;
  return params;
}

TEST(KernelCostTest, CausalPrefillCountsTheTriangle) {
  const AttentionSequence sequence = Causal(4096, 4096);
  EXPECT_EQ(MeasureSequence(sequence).visible_pairs, 4096LL * 4097 / 2);
  const KernelCost cost = AttentionCost(Row("cpu/prefill_avx2"), Params(sequence));
  EXPECT_EQ(cost.flops, 4.0 * 128 * 32 * (4096.0 * 4097 / 2));
}

TEST(KernelCostTest, FullAttentionCountsTheRectangle) {
  AttentionSequence sequence = Causal(10, 300);
  sequence.causal = false;
  const SequenceWork work = MeasureSequence(sequence);
  EXPECT_EQ(work.visible_pairs, 3000);
  EXPECT_EQ(work.visible_keys.size(), 300);
}

TEST(KernelCostTest, WindowLimitsPairsAndKeys) {
  AttentionSequence sequence = Causal(4, 100);
  sequence.window_left = 9;
  const SequenceWork work = MeasureSequence(sequence);
  EXPECT_EQ(work.visible_pairs, 4 * 10);
  EXPECT_EQ(work.visible_keys.begin, 87);
  EXPECT_EQ(work.visible_keys.end, 100);
}

TEST(KernelCostTest, NoQueryNoCost) {
  AttentionSequence sequence = Causal(0, 100);
  sequence.causal = false;
  const KernelCost cost = AttentionCost(Row("cpu/decode_avx2"), Params(sequence));
  EXPECT_EQ(cost.flops, 0);
  EXPECT_EQ(cost.min_read_bytes + cost.min_write_bytes, 0);
}

TEST(KernelCostTest, DecodeReadsEachCachedKeyOnce) {
  AttentionSequence sequence = Causal(1, 4096);
  const double kv = 2.0 * 4096 * 8 * 128 * 2;
  const double q = 32.0 * 128 * 2;
  const KernelCost contiguous = AttentionCost(Row("cpu/decode_avx2"), Params(sequence));
  EXPECT_EQ(contiguous.min_read_bytes, kv + q);
  EXPECT_EQ(contiguous.min_write_bytes, q);
  EXPECT_EQ(contiguous.expected_read_bytes, kv + q);
  const std::uint32_t entry = 0;
  sequence.kv.page_table = &entry;
  AttentionParams params = Params(sequence);
  params.page_layout = {DataType::kBf16, 16, 8, 128, 128};
  const KernelCost paged = AttentionCost(Row("cpu/decode_avx2"), params);
  EXPECT_EQ(paged.min_read_bytes, kv + q + 4 * 256);
}

TEST(KernelCostTest, PaddedPagesCostTheirPadding) {
  AttentionSequence sequence = Causal(1, 1000);
  const std::uint32_t entry = 0;
  sequence.kv.page_table = &entry;
  AttentionParams params = Params(sequence);
  params.head_dim = 72;
  params.page_layout = {DataType::kBf16, 8, 8, 72, 96};
  const KernelCost cost = AttentionCost(Row("cpu/decode_avx2"), params);
  EXPECT_EQ(cost.expected_read_bytes - cost.min_read_bytes, 2.0 * 1000 * 8 * 24 * 2);
}

TEST(KernelCostTest, OutputsCountTheirTypeAndLse) {
  AttentionSequence sequence = Causal(3, 50);
  float lse = 0;
  sequence.lse = &lse;
  AttentionParams params = Params(sequence);
  params.partial = true;
  EXPECT_EQ(AttentionCost(Row("cpu/decode_avx2"), params).min_write_bytes,
            3.0 * 32 * 128 * 4 + 3.0 * 32 * 4);
}

TEST(KernelCostTest, BiasCountsVisiblePairsOfItsHeads) {
  AttentionSequence sequence = Causal(3, 50);
  const float bias = 0;
  AttentionParams params = Params(sequence);
  const double before = AttentionCost(Row("cpu/prefill_avx2"), params).min_read_bytes;
  sequence.bias = &bias;
  const double pairs = 48 + 49 + 50;
  EXPECT_EQ(AttentionCost(Row("cpu/prefill_avx2"), params).min_read_bytes - before, 4 * pairs);
  sequence.bias_head_stride = 150;
  EXPECT_EQ(AttentionCost(Row("cpu/prefill_avx2"), params).min_read_bytes - before, 4 * 32 * pairs);
}

TEST(KernelCostTest, NaiveMovesTheWholeRectangleTwice) {
  const AttentionSequence sequence = Causal(1024, 1024);
  const KernelCost naive = AttentionCost(Row("cpu/naive_bf16"), Params(sequence));
  const double rectangle = 32.0 * 1024 * 1024;
  const double operands = 2.0 * 1024 * (32 + 2 * 8) * 128;
  EXPECT_EQ(naive.expected_read_bytes, rectangle * (4 + 2) + operands);
  EXPECT_EQ(naive.expected_write_bytes, rectangle * (4 + 2) + 1024.0 * 32 * 128 * 2);
  EXPECT_EQ(naive.flops, AttentionCost(Row("cpu/prefill_avx2"), Params(sequence)).flops);
}

TEST(KernelCostTest, NaivePaysForTheGather) {
  AttentionSequence sequence = Causal(1, 64);
  const double before = AttentionCost(Row("cpu/naive_bf16"), Params(sequence)).expected_write_bytes;
  const std::uint32_t entry = 0;
  sequence.kv.page_table = &entry;
  AttentionParams params = Params(sequence);
  params.page_layout = {DataType::kBf16, 16, 8, 128, 128};
  EXPECT_EQ(AttentionCost(Row("cpu/naive_bf16"), params).expected_write_bytes - before,
            2.0 * 64 * 8 * 128 * 2);
}

KernelRow CudaRow(Operation operation) {
  KernelRow row{};
  row.operation = operation;
  row.device = DeviceKind::kCuda;
  return row;
}

TEST(KernelCostTest, NaiveOnAGpuKeepsProbabilitiesInTheInputsType) {
  const AttentionSequence sequence = Causal(1024, 1024);
  AttentionParams params = Params(sequence);
  params.data_type = params.kv_data_type = DataType::kFp16;
  const KernelCost cost = AttentionCost(CudaRow(Operation::kNaive), params);
  const double rectangle = 32.0 * 1024 * 1024;
  const double q = 2.0 * 1024 * 32 * 128;
  const double kv = 2.0 * 2 * 1024 * 8 * 128;
  // q into the products' layout, o (as large as q) out of it.
  EXPECT_EQ(cost.expected_read_bytes, rectangle * (4 + 2) + q + kv + 2 * q);
  EXPECT_EQ(cost.expected_write_bytes, rectangle * (4 + 2) + q + 2 * q);
}

// What is read again is added by the plan of a launch: cuda_prefill_traffic_test.
TEST(KernelCostTest, TilesOnAGpuReadAHeadTogether) {
  const AttentionSequence sequence = Causal(32768, 32768);
  const KernelCost once = AttentionCost(CudaRow(Operation::kPrefill), Params(sequence));
  EXPECT_EQ(once.expected_read_bytes, once.min_read_bytes);
  EXPECT_GT(AttentionCost(Row("cpu/prefill_avx2"), Params(sequence)).expected_read_bytes,
            once.expected_read_bytes);
}

TEST(KernelCostTest, AppendWritesPaddedRows) {
  AppendSequence sequences[2];
  sequences[0].num_tokens = 3;
  sequences[1].num_tokens = 17;
  AppendParams params;
  params.sequences = sequences;
  params.num_sequences = 2;
  params.page_layout = {DataType::kFp16, 16, 4, 40, 64};
  const KernelCost cost = AppendCost(params);
  EXPECT_EQ(cost.min_read_bytes, 2.0 * 20 * 4 * 40 * 2 + 4 * (1 + 2));
  EXPECT_EQ(cost.min_write_bytes, 2.0 * 20 * 4 * 64 * 2);
  EXPECT_EQ(cost.flops, 0);
}

}  // namespace
}  // namespace attnd::kernels
