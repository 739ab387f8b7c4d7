// Causal alignment, windows and soft cap, on every kernel row.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/every_row.h"
#include "tests/support/random_tensors.h"

namespace attnd {
namespace {

using kernels::DataType;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Rows that see nothing are exactly zero with lse -inf; all others are not.
void ExpectEmptyRows(AttentionProblem& problem, const kernels::KernelRow& row, int first,
                     int last) {
  const ProblemShape& shape = problem.shape();
  ASSERT_EQ(problem.Run(row).status, kernels::LaunchStatus::kOk);
  const ProblemOutput output = problem.Output(0);
  const int rows = problem.params().sequences[0].query_length;
  for (int i = 0; i < rows * shape.num_heads; ++i) {
    const int token = i / shape.num_heads;
    const bool empty = token >= first && token < last;
    EXPECT_EQ(output.lse[i] == -kInfinity, empty) << row.name << ", row " << token;
    const bool all_zero =
        std::all_of(output.o.begin() + i * shape.head_dim,
                    output.o.begin() + (i + 1) * shape.head_dim, [](double o) { return o == 0; });
    EXPECT_EQ(all_zero, empty) << row.name << ", row " << token;
  }
}

TEST(MaskingTest, FullyMaskedRowIsZeroWithLseMinusInfinity) {
  const ProblemShape shape{.head_dim = 8};
  ProblemSequence sequence = SeededSequence(shape, 8, 8, 1, 1);
  sequence.bias.assign(64, -kInfinity);
  for (int row = 0; row < 4; ++row) {
    for (int key = 0; key < 4; ++key) sequence.bias[row * 8 + key] = 0;
  }
  ExpectEveryRowRight(shape, {sequence});
  AttentionProblem problem(shape, {sequence});
  for (const auto* row : AttentionRows(problem)) ExpectEmptyRows(problem, *row, 4, 8);
}

TEST(MaskingTest, MoreQueriesThanKeysLeaveTheFirstRowsEmpty) {
  const ProblemShape shape;
  ProblemSequence sequence = SeededSequence(shape, 5, 2, 2, 1);
  sequence.causal = true;
  AttentionProblem problem(shape, {sequence});
  ExpectStarts(problem, 3, 0, {-0.963854551, -0.161416173, -0.002820492, -0.919098139});
  for (const auto* row : AttentionRows(problem)) {
    ExpectEmptyRows(problem, *row, 0, 3);
    for (int dim = 0; dim < 64; ++dim) {  // row 3 sees key 0 alone
      EXPECT_EQ(static_cast<float>(problem.Output(0).o[3 * 64 + dim]), sequence.v[dim])
          << row->name;
    }
  }
  ExpectEveryRowRight(shape, {sequence});
  ProblemSequence uneven = SeededSequence(shape, 130, 67, 2, 1);
  uneven.causal = true;
  ExpectEveryRowRight(shape, {uneven});
}

TEST(MaskingTest, FewerQueriesThanKeysSeeTheCachedOnes) {
  const ProblemShape shape{.type = DataType::kFp16};
  ProblemSequence sequence = SeededSequence(shape, 2, 5, 3, 1);
  sequence.causal = true;
  AttentionProblem problem(shape, {sequence});
  ExpectStarts(problem, 0, 0, {-0.348499442, -0.184905436, -0.395516950, 0.059796774});
  ExpectEveryRowRight(shape, {sequence});
}

ProblemSequence AllNegativeLogits(const ProblemShape& shape) {
  ProblemSequence sequence;
  sequence.query_length = 88;
  sequence.kv_length = 448;
  sequence.causal = true;
  sequence.q.assign(std::size_t{88} * shape.num_heads * shape.head_dim, 1.0F);
  const std::int64_t kv_size = std::int64_t{448} * shape.num_kv_heads * shape.head_dim;
  sequence.k = RandomValues(6002, kv_size, 0.25);
  for (float& k : sequence.k) k -= 16;
  sequence.v = RandomValues(6003, kv_size, 1);
  return sequence;
}

TEST(MaskingTest, MaximumDoesNotStickAtZeroAfterAMaskedTile) {
  AttentionProblem anchor({}, {AllNegativeLogits({})});
  ExpectStarts(anchor, 0, 0, {0.028357945, -0.008750991, 0.028401413, 0.030855279});
  for (const DataType type : kEveryType) {
    for (const int group : {1, 7}) {
      const ProblemShape shape{
          .type = type, .num_heads = group == 1 ? 1 : 14, .num_kv_heads = group == 1 ? 1 : 2};
      ExpectEveryRowRight(shape, {AllNegativeLogits(shape)}, {16});
    }
  }
}

TEST(MaskingTest, ChunkedPrefillEqualsOneShot) {
  const ProblemShape one{.type = DataType::kFp16, .num_heads = 2, .num_kv_heads = 1};
  ProblemSequence whole = SeededSequence(one, 300, 300, 25, 2);
  whole.causal = true;
  AttentionProblem anchor(one, {whole});
  ExpectStarts(anchor, 299, 0, {0.063686361, -0.049070942, 0.064782127, -0.102123589});
  ExpectEveryRowRight(one, {whole});
  ProblemShape paged = one;
  paged.page_tokens = 16;
  for (const std::vector<int>& chunks : {std::vector{128, 128, 44}, {1, 299}}) {
    std::vector<ProblemSequence> parts;
    int begin = 0;
    for (const int length : chunks) {
      ProblemSequence part = whole;
      part.query_length = length;
      part.kv_length = begin + length;
      part.q.assign(whole.q.begin() + begin * 128, whole.q.begin() + (begin + length) * 128);
      part.k.resize(part.kv_length * 64);
      part.v.resize(part.kv_length * 64);
      begin += length;
      parts.push_back(part);
    }
    AttentionProblem chunked(paged, parts);
    ExpectEveryRowRight(chunked);
    // Same rows of the oracle: a chunk's answer is the whole prompt's answer.
    const auto& last = chunked.Reference(static_cast<int>(parts.size()) - 1).o;
    const auto& all = anchor.Reference(0).o;
    for (std::size_t i = 1; i <= last.size(); ++i) {
      ASSERT_NEAR(last[last.size() - i], all[all.size() - i], 1e-12);
    }
  }
}

TEST(MaskingTest, TokenByTokenEqualsOneShot) {
  const ProblemShape shape{
      .type = DataType::kFp16, .num_heads = 2, .num_kv_heads = 1, .page_tokens = 16};
  const ProblemSequence whole = SeededSequence(shape, 300, 300, 25, 2);
  std::vector<ProblemSequence> steps;
  for (int token = 0; token < 300; token += 13) {
    ProblemSequence step = whole;
    step.query_length = 1;
    step.causal = true;
    step.kv_length = token + 1;
    step.q.assign(whole.q.begin() + token * 128, whole.q.begin() + (token + 1) * 128);
    step.k.resize(step.kv_length * 64);
    step.v.resize(step.kv_length * 64);
    steps.push_back(step);
  }
  AttentionProblem problem(shape, steps);
  ExpectEveryRowRight(problem);
}

TEST(MaskingTest, WindowLeftCountsEarlierKeysAndTheKeyItself) {
  const ProblemShape shape{.head_dim = 16};
  ProblemSequence sequence;
  sequence.query_length = 16;
  sequence.kv_length = 16;
  sequence.causal = true;
  sequence.window_left = 4;
  sequence.q = RandomValues(1, 256, 1);
  sequence.k.assign(256, 0);
  for (int key = 0; key < 16; ++key)
    sequence.v.insert(sequence.v.end(), 16, static_cast<float>(key));
  AttentionProblem problem(shape, {sequence});
  for (const auto* row : AttentionRows(problem)) {
    ASSERT_EQ(problem.Run(*row).status, kernels::LaunchStatus::kOk);
    for (int i = 0; i < 16; ++i) {
      EXPECT_FLOAT_EQ(static_cast<float>(problem.Output(0).o[i * 16]),
                      static_cast<float>(std::max(0, i - 4) + i) / 2)
          << row->name << ", row " << i;
    }
  }
}

TEST(MaskingTest, TwoSidedWindowFollowsTheBottomRightDiagonal) {
  const ProblemShape shape{.type = DataType::kFp16};
  ProblemSequence sequence = SeededSequence(shape, 129, 32, 8, 2);
  sequence.window_left = 32;
  sequence.window_right = 64;
  AttentionProblem problem(shape, {sequence});
  ExpectStarts(problem, 128, 0, {0.102464754, -0.007085269, -0.071731228, -0.149689745});
  for (const auto* row : AttentionRows(problem)) ExpectEmptyRows(problem, *row, 0, 33);
  ExpectEveryRowRight(shape, {sequence});
}

TEST(MaskingTest, SingleTokenStepsObeyTheWindow) {
  ProblemShape shape{.page_tokens = 16};
  const ProblemSequence whole = SeededSequence(shape, 12, 12, 10, 2);
  std::vector<ProblemSequence> steps;
  for (int token = 0; token < 12; ++token) {
    ProblemSequence step = whole;
    step.query_length = 1;
    step.kv_length = token + 1;
    step.causal = true;
    step.window_left = 7;
    step.q.assign(whole.q.begin() + token * 64, whole.q.begin() + (token + 1) * 64);
    step.k.resize(step.kv_length * 64);
    step.v.resize(step.kv_length * 64);
    steps.push_back(step);
  }
  AttentionProblem last(shape, {steps.back()});
  ExpectStarts(last, 0, 0, {-0.274991153, 0.181023651, -0.606118387, 0.180294941});
  AttentionProblem problem(shape, steps);
  ExpectEveryRowRight(problem);
}

TEST(MaskingTest, CapAndWindowHoldTogether) {
  const ProblemShape shape{.type = DataType::kBf16, .num_heads = 4, .num_kv_heads = 2};
  ProblemSequence sequence = SeededSequence(shape, 96, 96, 9, 4);
  sequence.causal = true;
  sequence.window_left = 16;
  sequence.soft_cap = 5;
  AttentionProblem problem(shape, {sequence});
  ExpectStarts(problem, 95, 0, {0.155571930, 0.072743609, 0.122123557, -0.480956697});
  ExpectEveryRowRight(shape, {sequence});
}

// Every option at once, each type: positions off the diagonal, ALiBi, sinks, bias, cap, windows.
TEST(MaskingTest, EveryOptionTogether) {
  for (const DataType type : kEveryType) {
    for (const bool partial : {false, true}) {
      for (const int query_length : {1, 5, 70}) {
        const ProblemShape shape{
            .type = type, .num_heads = 6, .num_kv_heads = 2, .head_dim = 48, .partial = partial};
        ProblemSequence sequence = SeededSequence(shape, query_length, 211, 77, 2);
        sequence.query_position = 400;
        sequence.key_position = 230;
        sequence.window_left = 150;
        sequence.window_right = 20;
        sequence.soft_cap = 3;
        sequence.alibi_slopes = {0.5F, 0.25F, 0.125F, 0.0625F, 0.03F, 0.0F};
        sequence.sink_logits = {0, 1, -1, 2, 0.5F, -3};
        sequence.bias = RandomValues(78, std::int64_t{6} * query_length * 211, 1);
        ExpectEveryRowRight(shape, {sequence}, {0, 8});
      }
    }
  }
}

TEST(MaskingTest, SinkAloneIsTheLseOfARowThatSeesNothing) {
  const ProblemShape shape{.num_heads = 2, .num_kv_heads = 1, .head_dim = 32};
  ProblemSequence sequence = SeededSequence(shape, 3, 1, 5, 1);
  sequence.causal = true;
  sequence.sink_logits = {1.5F, -2.0F};
  AttentionProblem problem(shape, {sequence});
  EXPECT_EQ(problem.Reference(0).lse[0], 1.5);
  ExpectEveryRowRight(problem);
}

}  // namespace
}  // namespace attnd
