// Under batch_invariant a sequence's bits are its own: every fused row gives it the same ones alone
// and among any neighbours, in any place of the batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/kernels/every_row.h"

namespace attnd {
namespace {

using kernels::LaunchStatus;
using kernels::Operation;

constexpr RunSettings kInvariant{.num_threads = 2, .plan = {.batch_invariant = true}};

struct Lengths {
  int query;
  std::int64_t kv;
};

// Neighbours that differ in all that a launch might be shaped by: rows of a pass, splits, tiles.
std::vector<ProblemSequence> Sequences(const ProblemShape& shape, const std::vector<Lengths>& all) {
  std::vector<ProblemSequence> sequences;
  for (const Lengths& lengths : all) {
    sequences.push_back(
        SeededSequence(shape, lengths.query, lengths.kv, 120 + sequences.size(), 1));
    sequences.back().causal = true;
  }
  return sequences;
}

void AddOptions(const ProblemShape& shape, std::vector<ProblemSequence>& sequences) {
  for (ProblemSequence& sequence : sequences) {
    sequence.soft_cap = 4;
    for (int head = 0; head < shape.num_heads; ++head) {
      sequence.alibi_slopes.push_back(0.01F * static_cast<float>(head + 1));
      sequence.sink_logits.push_back(0.25F * static_cast<float>(head));
    }
    sequence.bias.assign(sequence.query_length * sequence.kv_length, 0.3F);
  }
}

void ExpectOwnBits(const ProblemShape& shape, const std::vector<ProblemSequence>& sequences,
                   std::initializer_list<Operation> operations) {
  AttentionProblem crowd(shape, sequences);
  AttentionProblem turned(shape, {sequences.rbegin(), sequences.rend()});
  std::vector<std::unique_ptr<AttentionProblem>> alone;
  for (const ProblemSequence& sequence : sequences) {
    alone.push_back(std::make_unique<AttentionProblem>(shape, std::vector{sequence}));
  }
  int rows = 0;
  for (const kernels::KernelRow* row : AttentionRows(crowd)) {
    if (std::find(operations.begin(), operations.end(), row->operation) == operations.end()) {
      continue;
    }
    ++rows;
    ASSERT_EQ(crowd.Run(*row, kInvariant).status, LaunchStatus::kOk) << row->name;
    ASSERT_EQ(turned.Run(*row, kInvariant).status, LaunchStatus::kOk) << row->name;
    const int last = crowd.num_sequences() - 1;
    for (int i = 0; i <= last; ++i) {
      AttentionProblem& one = *alone[static_cast<std::size_t>(i)];
      ASSERT_EQ(one.Run(*row, kInvariant).status, LaunchStatus::kOk) << row->name;
      const std::vector<std::byte> bits = one.OutputBits(0);
      EXPECT_TRUE(crowd.OutputBits(i) == bits)
          << row->name << ": sequence " << i << " of a batch of " << last + 1;
      EXPECT_TRUE(turned.OutputBits(last - i) == bits)
          << row->name << ": sequence " << i << " in the place of " << last - i;
    }
  }
  EXPECT_GT(rows, 0);
}

void ExpectOwnBitsWithAndWithoutOptions(const ProblemShape& shape,
                                        const std::vector<Lengths>& lengths,
                                        std::initializer_list<Operation> operations) {
  std::vector<ProblemSequence> sequences = Sequences(shape, lengths);
  ExpectOwnBits(shape, sequences, operations);
  AddOptions(shape, sequences);
  ExpectOwnBits(shape, sequences, operations);
}

// One query row and several, one pass over the keys and several, 1 to 10 splits.
TEST(BatchInvarianceTest, DecodeRows) {
  const std::vector<Lengths> lengths = {{1, 700}, {1, 9300}, {3, 33}, {8, 2050}, {2, 9300}, {1, 1}};
  for (const kernels::DataType type : kEveryType) {
    for (const int head_dim : {64, 128, 256}) {
      ProblemShape shape{
          .type = type, .num_heads = 2, .num_kv_heads = 2, .head_dim = head_dim, .page_tokens = 16};
      ExpectOwnBitsWithAndWithoutOptions(shape, lengths, {Operation::kDecode});
    }
    ProblemShape grouped{.type = type, .num_heads = 6, .num_kv_heads = 1, .head_dim = 128};
    ExpectOwnBitsWithAndWithoutOptions(grouped, lengths, {Operation::kDecode});
  }
}

// A pass takes 16 query rows, or 32 where a sequence has more.
TEST(BatchInvarianceTest, DecodeRowsOfLargeGroups) {
  const std::vector<Lengths> lengths = {{1, 1100}, {2, 300}, {1, 8300}, {2, 2050}};
  for (const kernels::DataType type : kEveryType) {
    for (const int heads : {12, 24, 32}) {
      ProblemShape shape{
          .type = type, .num_heads = heads, .num_kv_heads = 1, .head_dim = 128, .page_tokens = 64};
      ExpectOwnBits(shape, Sequences(shape, lengths), {Operation::kDecode});
    }
  }
}

TEST(BatchInvarianceTest, PrefillRows) {
  const std::vector<Lengths> lengths = {{150, 150}, {9, 1300}, {37, 500}, {1, 70}, {260, 300}};
  for (const kernels::DataType type : kEveryType) {
    for (const int head_dim : {64, 128, 256}) {
      ProblemShape shape{
          .type = type, .num_heads = 2, .num_kv_heads = 1, .head_dim = head_dim, .page_tokens = 16};
      ExpectOwnBitsWithAndWithoutOptions(shape, lengths, {Operation::kPrefill, Operation::kExact});
    }
  }
}

}  // namespace
}  // namespace attnd
