// Large, tiny, zero, negative and non-finite numbers, on every kernel row.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/every_row.h"
#include "tests/support/random_tensors.h"

namespace attnd {
namespace {

using kernels::DataType;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(NumericRangeTest, LogitsBelowAnySentinelStillCount) {
  for (const DataType type : {DataType::kFp32, DataType::kBf16}) {
    for (const double level : {-1e5, -6e5, -1e8, -1e30}) {
      const ProblemShape shape{.type = type, .num_heads = 16, .num_kv_heads = 1, .head_dim = 128};
      ProblemSequence sequence;
      sequence.kv_length = 64;
      sequence.q.assign(16 * 128, 1.0F);
      sequence.k.assign(64 * 128, static_cast<float>(level / 128));
      std::fill_n(sequence.k.begin(), 128, static_cast<float>(0.875 * level / 128));
      sequence.v = RandomValues(13003, 64 * 128, 1);
      AttentionProblem problem(shape, {sequence});
      // One-hot: every head returns the first value. Its weight is 2^(the rounding of the maximum),
      // so FP32 rounds twice, once in p * v and once in the division by p.
      const double lse = 0.875 * level / std::sqrt(128.0);
      for (const auto* row : AttentionRows(problem)) {
        ASSERT_EQ(problem.Run(*row).status, kernels::LaunchStatus::kOk);
        const ProblemOutput output = problem.Output(0);
        for (int i = 0; i < 16 * 128; ++i) {
          const double value =
              kernels::ReferenceElement(problem.params().sequences[0].kv.v, type, i % 128);
          const double allowed = type == DataType::kFp32 ? 0x1p-23 * std::fabs(value) : 0;
          ASSERT_NEAR(output.o[i], value, allowed) << row->name << ", level " << level;
        }
        // BF16 keys are level / 128 rounded to 8 bits; FP32 adds 128 products.
        EXPECT_NEAR(output.lse[0], lse, std::fabs(lse) * (type == DataType::kFp32 ? 4e-6 : 4e-3));
      }
    }
  }
}

TEST(NumericRangeTest, ScoresBeyondHalfPrecisionStayFinite) {
  const ProblemShape shape{.type = DataType::kFp16, .head_dim = 128};
  ProblemSequence sequence;
  sequence.query_length = 4;
  sequence.kv_length = 80;
  sequence.q = RandomValues(14001, 512, 500);
  sequence.k = RandomValues(14002, 10240, 350);
  sequence.v = RandomValues(14003, 10240, 1);
  AttentionProblem problem(shape, {sequence});
  ExpectStarts(problem, 0, 0, {-0.700195312, -0.345703125, 0.816894531, -0.199218750});
  ExpectEveryRowRight(shape, {sequence});
}

TEST(NumericRangeTest, ScaleZeroGivesThePlainMean) {
  const ProblemShape shape{.head_dim = 16};
  ProblemSequence sequence = SeededSequence(shape, 2, 77, 18, 5);
  sequence.scale = 0.0F;
  for (int i = 0; i < 77 * 16; ++i) sequence.v[i] = static_cast<float>(i / 16);
  for (const int page_tokens : {0, 16}) {
    ProblemShape paged = shape;
    paged.page_tokens = page_tokens;
    AttentionProblem problem(paged, {sequence});
    for (const auto* row : AttentionRows(problem)) {
      ASSERT_EQ(problem.Run(*row).status, kernels::LaunchStatus::kOk);
      for (const double o : problem.Output(0).o) EXPECT_NEAR(o, 38.0, 1e-5) << row->name;
    }
  }
}

TEST(NumericRangeTest, NegativeScaleTakesTheMaximumOfScaledScores) {
  const ProblemShape shape{.type = DataType::kFp16, .num_heads = 2, .num_kv_heads = 1};
  ProblemSequence sequence = SeededSequence(shape, 8, 200, 17, 10);
  sequence.scale = -0.125F;
  ExpectEveryRowRight(shape, {sequence});
  sequence.query_length = 1;
  sequence.q.resize(128);
  sequence.causal = true;
  sequence.window_left = 90;
  ExpectEveryRowRight(shape, {sequence});
}

TEST(NumericRangeTest, LseIsTheNaturalLogarithm) {
  const ProblemShape shape{.head_dim = 32};
  ProblemSequence sequence = SeededSequence(shape, 1, 3136, 24, 1);
  std::fill(sequence.k.begin(), sequence.k.end(), 0.0F);
  AttentionProblem problem(shape, {sequence});
  for (const auto* row : AttentionRows(problem)) {
    for (const int splits : {1, 3}) {
      ASSERT_EQ(problem.Run(*row, {.plan = {.forced_splits = splits}}).status,
                kernels::LaunchStatus::kOk);
      EXPECT_NEAR(problem.Output(0).lse[0], std::log(3136.0), 1e-5) << row->name;
    }
  }
}

// NaN or infinity in K and V of token 8 of a causal sequence of 12: rows 0 to 7 keep their bits.
TEST(NumericRangeTest, HiddenNonFiniteValuesNeverReachVisibleRows) {
  for (const DataType type : kEveryType) {
    for (const float poison : {kNan, kInfinity}) {
      for (const int page_tokens : {0, 8}) {
        const ProblemShape shape{.type = type,
                                 .num_heads = 2,
                                 .num_kv_heads = 2,
                                 .head_dim = 32,
                                 .page_tokens = page_tokens};
        ProblemSequence sequence = SeededSequence(shape, 12, 12, 33, 1);
        sequence.causal = true;
        const ProblemSequence neighbour = SeededSequence(shape, 3, 40, 34, 1);
        AttentionProblem problem(shape, {sequence, neighbour});
        for (const auto* row : AttentionRows(problem)) {
          AttentionProblem dirty(shape, {sequence, neighbour});
          for (int head = 0; head < 2; ++head) {
            for (int dim = 0; dim < 32; ++dim) {
              dirty.SetKey(0, 8, head, dim, poison);
              dirty.SetValue(0, 8, head, dim, poison);
            }
          }
          ASSERT_EQ(problem.Run(*row).status, kernels::LaunchStatus::kOk);
          const kernels::LaunchResult result = dirty.Run(*row);
          ASSERT_EQ(result.status, kernels::LaunchStatus::kOk);
          const std::vector<double> clean_rows = problem.Output(0).o;
          const std::vector<double> dirty_rows = dirty.Output(0).o;
          for (int i = 0; i < 8 * 2 * 32; ++i) {
            // A rerun row is exact, so it may differ from the tile's answer by rounding only.
            const double allowed = result.exact_reruns > 0 ? 4 * UnitRoundoff(type) : 0;
            ASSERT_NEAR(dirty_rows[i], clean_rows[i], allowed) << row->name << ", element " << i;
          }
          for (int i = 8 * 2 * 32; i < 12 * 2 * 32; ++i) {
            ASSERT_FALSE(std::isfinite(dirty_rows[i])) << row->name << ", element " << i;
          }
          EXPECT_EQ(problem.OutputBits(1), dirty.OutputBits(1)) << row->name;
          EXPECT_EQ(CheckRow(dirty, *row), "");
        }
      }
    }
  }
}

// A score of -inf from the bias hides its key like a mask, NaN values behind it included.
TEST(NumericRangeTest, MinusInfinityBiasHidesNonFiniteValues) {
  for (const DataType type : kEveryType) {
    const ProblemShape shape{.type = type, .num_heads = 2, .num_kv_heads = 1, .head_dim = 40};
    ProblemSequence sequence = SeededSequence(shape, 3, 90, 35, 1);
    sequence.bias.assign(3 * 90, 0.0F);
    for (int row = 0; row < 3; ++row) sequence.bias[row * 90 + 70] = -kInfinity;
    AttentionProblem problem(shape, {sequence});
    for (int dim = 0; dim < 40; ++dim) problem.SetValue(0, 70, 0, dim, kNan);
    for (const auto* row : AttentionRows(problem)) {
      EXPECT_EQ(CheckRow(problem, *row), "");
      for (const double o : problem.Output(0).o) ASSERT_TRUE(std::isfinite(o)) << row->name;
    }
  }
}

TEST(NumericRangeTest, VisibleNanReachesExactlyItsOwnChannel) {
  for (const DataType type : kEveryType) {
    const ProblemShape shape{.type = type, .num_heads = 4, .num_kv_heads = 1, .page_tokens = 16};
    AttentionProblem problem(shape, {SeededSequence(shape, 1, 100, 36, 1)});
    problem.SetValue(0, 31, 0, 7, kNan);
    for (const auto* row : AttentionRows(problem)) {
      EXPECT_EQ(CheckRow(problem, *row), "");
      EXPECT_GT(problem.Run(*row).exact_reruns + (row->operation == kernels::Operation::kExact), 0)
          << row->name;
    }
  }
}

TEST(NumericRangeTest, LargeLogitsWithEveryOption) {
  for (const DataType type : kEveryType) {
    const ProblemShape shape{.type = type, .num_heads = 2, .num_kv_heads = 1, .head_dim = 64};
    ProblemSequence sequence = SeededSequence(shape, 2, 150, 37, 30);
    sequence.causal = true;
    sequence.sink_logits = {400, -400};
    ExpectEveryRowRight(shape, {sequence});
    sequence.soft_cap = 50;
    ExpectEveryRowRight(shape, {sequence});
  }
}

}  // namespace
}  // namespace attnd
