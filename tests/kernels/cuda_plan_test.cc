// Plans of CUDA launches: copies, workspace, uploads, reruns and naive's chunks. Pure host code: no
// pointer is followed.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/any/convert.h"
#include "kernels/cuda/cuda_plan.h"
#include "kernels/naive/naive_plan.h"

namespace attnd::kernels {
namespace {

constexpr DeviceLimits kCard{DeviceKind::kCuda, 90, CpuTarget::kAuto, 132};

// An address that nothing reads.
std::byte* Device(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

struct Call {
  std::vector<AttentionSequence> sequences;
  AttentionParams params;

  Call(DataType type, int num_heads, int num_kv_heads, int head_dim) {
    params.data_type = params.kv_data_type = type;
    params.num_heads = num_heads;
    params.num_kv_heads = num_kv_heads;
    params.head_dim = head_dim;
  }
  AttentionSequence& Add(int query_length, std::int64_t kv_length, bool paged = false) {
    AttentionSequence sequence;
    sequence.q = Device(0x100000);
    sequence.o = Device(0x200000);
    sequence.q_token_stride = sequence.o_token_stride =
        std::int64_t{params.num_heads} * params.head_dim;
    sequence.q_head_stride = sequence.o_head_stride = params.head_dim;
    if (paged) {
      sequence.kv.page_table = reinterpret_cast<const std::uint32_t*>(Device(0x500000));
    } else {
      sequence.kv.k = Device(0x300000);
      sequence.kv.v = Device(0x400000);
      sequence.kv.k_token_stride = sequence.kv.v_token_stride =
          std::int64_t{params.num_kv_heads} * params.head_dim;
      sequence.kv.k_head_stride = sequence.kv.v_head_stride = params.head_dim;
    }
    sequence.query_length = query_length;
    sequence.kv_length = kv_length;
    sequence.query_position = kv_length - query_length;
    sequences.push_back(sequence);
    params.sequences = sequences.data();
    params.num_sequences = static_cast<std::int32_t>(sequences.size());
    return sequences.back();
  }
};

CudaPlan Plan(const char* row, const Call& call) {
  return PlanCudaAttention(*FindKernelByName(row), call.params, kCard, {});
}

template <class T>
std::vector<T> Part(const std::vector<std::byte>& upload, std::int64_t at, std::size_t count) {
  std::vector<T> values(count);
  std::memcpy(values.data(), upload.data() + at, count * sizeof(T));
  return values;
}

TEST(CudaPlanTest, ARowGetsNoPlanForWhatItDoesNotServe) {
  Call call(DataType::kBf16, 8, 2, 64);
  call.Add(10, 20);
  EXPECT_NE(Plan("sm80/prefill_bf16_d64", call).attention.row, nullptr);
  EXPECT_EQ(Plan("sm80/prefill_fp16_d64", call).attention.row, nullptr);
  EXPECT_EQ(Plan("any/append", call).attention.row, nullptr);
  call.sequences[0].logits_soft_cap = 3;
  EXPECT_EQ(Plan("sm80/prefill_bf16_d64", call).attention.row, nullptr);
  EXPECT_NE(Plan("sm80/prefill_bf16_d64_all", call).attention.row, nullptr);
  call.params.head_dim = 65;
  EXPECT_EQ(Plan("sm80/prefill_bf16_d64_all", call).attention.row, nullptr);
  Call wide(DataType::kFp32, 65536, 65536, 16);
  wide.Add(1, 2);
  EXPECT_EQ(Plan("any/prefill_simt_fp32_d64", wide).attention.row, nullptr);
  wide.params.num_heads = wide.params.num_kv_heads = 65535;
  EXPECT_NE(Plan("any/prefill_simt_fp32_d64", wide).attention.row, nullptr);
}

TEST(CudaPlanTest, AlignedCallsAreNotCopied) {
  Call call(DataType::kFp16, 4, 2, 64);
  call.Add(100, 200);
  const CudaPlan plan = Plan("sm80/prefill_fp16_d64", call);
  EXPECT_TRUE(plan.detail->inputs.empty());
  EXPECT_TRUE(plan.detail->outputs.empty());
  EXPECT_EQ(plan.attention.workspace_bytes, plan.upload_bytes);
}

TEST(CudaPlanTest, UnalignedTensorsAreCopiedAndCounted) {
  Call aligned(DataType::kFp16, 4, 2, 64);
  aligned.Add(100, 200);
  const double bytes = Plan("sm80/prefill_fp16_d64", aligned).attention.cost.expected_read_bytes;
  Call call = aligned;
  call.params.sequences = call.sequences.data();
  call.sequences[0].q = Device(0x100002);    // a base off by one element
  call.sequences[0].kv.v_token_stride += 1;  // rows of V drift
  const CudaPlan plan = Plan("sm80/prefill_fp16_d64", call);
  ASSERT_EQ(plan.detail->inputs.size(), 2U);
  EXPECT_EQ(plan.detail->inputs[0].tensor, PlannedCopy::kQuery);
  EXPECT_EQ(plan.detail->inputs[1].tensor, PlannedCopy::kValue);
  EXPECT_TRUE(plan.detail->outputs.empty());
  const double copied = 100.0 * 4 * 128 + 200.0 * 2 * 128;
  EXPECT_DOUBLE_EQ(plan.attention.cost.expected_read_bytes, bytes + copied);
  EXPECT_GE(plan.attention.workspace_bytes - plan.upload_bytes, copied);
  // The exact row reads element by element.
  EXPECT_TRUE(Plan("any/prefill_simt_fp16_d64", call).detail->inputs.empty());
}

// A row that ends inside 16 bytes would be read into its neighbour and written over it.
TEST(CudaPlanTest, AHeadDimThatFillsNo16BytesIsCopiedBothWays) {
  Call call(DataType::kBf16, 2, 1, 100);
  call.Add(50, 60);
  const CudaPlan plan = Plan("sm80/prefill_bf16_d128", call);
  EXPECT_EQ(plan.detail->inputs.size(), 3U);
  ASSERT_EQ(plan.detail->outputs.size(), 1U);
  EXPECT_EQ(plan.detail->padded_row_bytes, 208);
  Call paged(DataType::kBf16, 2, 1, 100);
  paged.params.page_layout = {DataType::kBf16, 16, 1, 100, 128};
  paged.Add(1, 60, true);
  const CudaPlan decode = Plan("sm80/decode_mma_bf16_d128", paged);
  ASSERT_EQ(decode.detail->inputs.size(), 1U);  // pages are padded, o is written by elements
  EXPECT_EQ(decode.detail->inputs[0].tensor, PlannedCopy::kQuery);
  EXPECT_TRUE(decode.detail->outputs.empty());
}

TEST(CudaPlanTest, TheUploadPointsKernelsAtTheCopies) {
  Call call(DataType::kBf16, 2, 1, 100);
  call.Add(50, 60);
  const CudaPlan plan = Plan("sm80/prefill_bf16_d128", call);
  std::byte* const workspace = Device(0x10000000);
  std::vector<std::byte> upload(static_cast<std::size_t>(plan.upload_bytes), std::byte{0xFF});
  EncodeCudaAttention(plan, call.params, workspace, upload.data());
  const auto sequence = Part<AttentionSequence>(upload, plan.detail->layout.sequences, 1).front();
  EXPECT_EQ(sequence.q, workspace + plan.detail->inputs[0].offset);
  EXPECT_EQ(sequence.q_token_stride, 2 * 104);
  EXPECT_EQ(sequence.q_head_stride, 104);
  EXPECT_EQ(sequence.kv.k, workspace + plan.detail->inputs[1].offset);
  EXPECT_EQ(sequence.o, workspace + plan.detail->outputs[0].offset);
  const auto jobs = Part<any::ConvertJob>(upload, plan.detail->layout.jobs, 4);
  EXPECT_EQ(jobs[0].from, static_cast<const std::byte*>(call.sequences[0].q));
  EXPECT_EQ(jobs[0].row_bytes, 200);
  EXPECT_EQ(jobs[0].padded_bytes, 208);
  EXPECT_EQ(jobs[3].to, static_cast<std::byte*>(call.sequences[0].o));
  EXPECT_EQ(jobs[3].padded_bytes, 200);  // nothing behind o's row is touched
  // Status and flags start at zero.
  for (std::int64_t at = plan.status_offset; at < plan.upload_bytes; ++at) {
    ASSERT_EQ(upload[static_cast<std::size_t>(at)], std::byte{0});
  }
}

TEST(CudaPlanTest, ARerunTaskFollowsTheTileThatHoldsItsRows) {
  Call call(DataType::kFp16, 4, 2, 64);
  call.Add(300, 300);
  call.Add(5, 900);
  const CudaPlan first = Plan("sm80/prefill_fp16_d64", call);
  const CudaPlan rerun = PlanCudaRerun(first, call.params, Device(0x10000000));
  ASSERT_NE(rerun.attention.row, nullptr);
  EXPECT_EQ(rerun.attention.row->operation, Operation::kExact);
  const int tile = first.detail->row->block_rows;
  const int block = rerun.detail->row->block_rows;
  ASSERT_EQ(tile % block, 0);
  ASSERT_EQ(rerun.detail->prefill_tasks.size(), rerun.detail->rerun_of.size());
  int rows[2] = {};
  for (std::size_t i = 0; i < rerun.detail->rerun_of.size(); ++i) {
    const PrefillTask task = rerun.detail->prefill_tasks[i];
    const PrefillTask of =
        first.detail->prefill_tasks[static_cast<std::size_t>(rerun.detail->rerun_of[i])];
    EXPECT_EQ(task.sequence, of.sequence);
    EXPECT_EQ(task.query_tile * block / tile, of.query_tile);
    rows[task.sequence] +=
        std::min(block, call.sequences[task.sequence].query_length - task.query_tile * block);
  }
  EXPECT_EQ(rows[0], 300);
  EXPECT_EQ(rows[1], 5);
}

TEST(CudaPlanTest, ARerunOfDecodeFollowsTheSequence) {
  Call call(DataType::kBf16, 8, 2, 128);
  for (int i = 0; i < 3; ++i) call.Add(1, 5000);
  const CudaPlan first = Plan("sm80/decode_mma_bf16_d128", call);
  EXPECT_GT(first.attention.num_splits, 1);
  const CudaPlan rerun = PlanCudaRerun(first, call.params, Device(0x10000000));
  EXPECT_EQ(rerun.detail->rerun_of, (std::vector<std::int32_t>{0, 1, 2}));
}

TEST(CudaPlanTest, NaivesCopyOfKeysIsPartOfItsCost) {
  Call together(DataType::kFp16, 4, 2, 64);
  together.Add(1, 500);
  together.Add(1, 500);
  Call alone(DataType::kFp16, 4, 2, 64);
  alone.Add(1, 500);
  const KernelCost both = Plan("naive/fp16", together).attention.cost;
  const KernelCost one = Plan("naive/fp16", alone).attention.cost;
  const double copied = 2.0 * 500 * 2 * 64 * 2;  // K and V of one sequence
  EXPECT_DOUBLE_EQ(both.expected_write_bytes, 2 * (one.expected_write_bytes + copied));
  EXPECT_DOUBLE_EQ(both.expected_read_bytes, 2 * (one.expected_read_bytes + copied));
}

TEST(NaivePlanTest, SmallSequencesGoTogetherAndLargeOnesAlone) {
  Call call(DataType::kFp16, 16, 4, 64);
  for (int i = 0; i < 5; ++i) call.Add(1, 1000);
  call.Add(2048, 2048);
  call.Add(2048, 2048);
  const naive::NaivePlan plan = naive::PlanNaive(call.params);
  ASSERT_EQ(plan.chunks.size(), 3U);
  EXPECT_EQ(plan.chunks[0].num_sequences, 5);
  EXPECT_FALSE(plan.chunks[0].keys_in_place);
  EXPECT_EQ(plan.chunks[1].num_sequences, 1);
  EXPECT_TRUE(plan.chunks[1].keys_in_place);
  // Scores in FP32, probabilities in the type, q and o regrouped; K and V stay where they are.
  const std::int64_t scores = std::int64_t{16} * 2048 * 2048;
  EXPECT_EQ(plan.scratch, 6 * scores + std::int64_t{2} * 16 * 2048 * 64 * 2);
}

TEST(NaivePlanTest, PaddingIsBoundedAndEmptySequencesTakeNothing) {
  Call call(DataType::kBf16, 4, 4, 100);
  call.Add(0, 50);
  call.Add(1, 1000);
  call.Add(1, 900);
  call.Add(1, 100);  // padded to 1000 keys it would double the work
  const naive::NaivePlan plan = naive::PlanNaive(call.params);
  EXPECT_EQ(plan.width, 104);
  std::int64_t padded = 0;
  std::int64_t real = 0;
  int covered = 0;
  for (const naive::NaiveChunk& chunk : plan.chunks) {
    padded += std::int64_t{chunk.num_sequences} * chunk.query_rows * chunk.keys;
    for (int i = 0; i < chunk.num_sequences; ++i) {
      const AttentionSequence& member = call.sequences[chunk.first_sequence + i];
      real += member.query_length * member.kv_length;
      EXPECT_LE(member.query_length, chunk.query_rows);
      EXPECT_LE(member.kv_length, chunk.keys);
      if (member.query_length > 0) ++covered;
    }
    EXPECT_EQ(chunk.pitch % 8, 0);
    EXPECT_GE(chunk.pitch, chunk.keys);
  }
  EXPECT_EQ(covered, 3);
  EXPECT_LE(static_cast<double>(padded), 1.25 * static_cast<double>(real));
}

}  // namespace
}  // namespace attnd::kernels
