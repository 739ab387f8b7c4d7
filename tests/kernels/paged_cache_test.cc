// Pages, splits and batches: what a sequence's answer must not depend on.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/every_row.h"
#include "tests/support/random_tensors.h"

namespace attnd {
namespace {

using kernels::DataType;
using kernels::LaunchStatus;
using kernels::Operation;

TEST(PagedCacheTest, EverySplitCountWritesEveryRow) {
  for (const DataType type : kEveryType) {
    const ProblemShape shape{
        .type = type, .num_heads = 4, .num_kv_heads = 4, .head_dim = 64, .page_tokens = 16};
    AttentionProblem problem(
        shape, {SeededSequence(shape, 1, 1024, 31, 1), SeededSequence(shape, 1, 1024, 32, 1)});
    for (const int splits : {1, 2, 4, 8, 1000}) {
      for (const auto* row : AttentionRows(problem)) {
        EXPECT_EQ(CheckRow(problem, *row, {.plan = {.forced_splits = splits}}), "");
        if (row->operation == Operation::kDecode) {
          EXPECT_GE(problem.plan().num_splits, std::min(splits, 4)) << row->name;
        }
      }
    }
  }
}

TEST(PagedCacheTest, SplitCombineStaysInsideItsOutputs) {
  const ProblemShape shape{.num_heads = 6, .num_kv_heads = 6};
  std::vector<ProblemSequence> sequences;
  for (int i = 0; i < 3; ++i) sequences.push_back(SeededSequence(shape, 5, 700, 60 + i, 1));
  AttentionProblem problem(shape, sequences);
  for (const int splits : {0, 2, 5}) {
    ExpectEveryRowRight(problem, {.plan = {.forced_splits = splits}});
  }
}

TEST(PagedCacheTest, PrefixAndSuffixMergeToTheWhole) {
  const ProblemShape shape{.type = DataType::kFp16, .num_heads = 2, .num_kv_heads = 1};
  ProblemSequence whole = SeededSequence(shape, 4, 3136, 24, 2);
  whole.causal = true;
  ExpectEveryRowRight(shape, {whole});
  // Parts: keys [0, 3072) and [3072, 3136), each at its own place on the axis.
  ProblemShape partial = shape;
  partial.partial = true;
  ProblemSequence prefix = whole;
  ProblemSequence suffix = whole;
  prefix.kv_length = 3072;
  prefix.k.resize(3072 * 64);
  prefix.v.resize(3072 * 64);
  prefix.query_position = suffix.query_position = 3132;
  suffix.kv_length = 64;
  suffix.key_position = 3072;
  suffix.k.erase(suffix.k.begin(), suffix.k.begin() + 3072 * 64);
  suffix.v.erase(suffix.v.begin(), suffix.v.begin() + 3072 * 64);
  AttentionProblem parts(partial, {prefix, suffix});
  AttentionProblem reference(shape, {whole});
  for (const auto* row : AttentionRows(parts)) {
    ASSERT_EQ(CheckRow(parts, *row), "");
    std::vector<std::vector<float>> o(2), lse(2);
    for (int part = 0; part < 2; ++part) {
      const ProblemOutput output = parts.Output(part);
      o[part].assign(output.o.begin(), output.o.end());
      lse[part].assign(output.lse.begin(), output.lse.end());
    }
    const float* o_parts[] = {o[0].data(), o[1].data()};
    const float* lse_parts[] = {lse[0].data(), lse[1].data()};
    std::vector<float> merged(4 * 2 * 64), merged_lse(8);
    kernels::MergeStates(
        {o_parts, lse_parts, 2, 8, 64, nullptr, DataType::kFp32, merged.data(), merged_lse.data()});
    for (std::size_t i = 0; i < merged.size(); ++i) {
      // Probabilities of a BF16 or FP16 part may be rounded once.
      ASSERT_NEAR(merged[i], reference.Reference(0).o[i], 2 * UnitRoundoff(DataType::kFp16))
          << row->name;
    }
    for (int i = 0; i < 8; ++i) {
      ASSERT_NEAR(merged_lse[i], reference.Reference(0).lse[i], 1e-5) << row->name;
    }
  }
}

TEST(PagedCacheTest, UnusedSlotsNeverLeak) {
  const ProblemShape shape{
      .type = DataType::kFp16, .num_heads = 2, .num_kv_heads = 1, .page_tokens = 16};
  AttentionProblem problem(shape, {SeededSequence(shape, 1, 33, 20, 2)});
  ExpectStarts(problem, 0, 0, {-0.198236452, -0.310019980, -0.180705923, 0.001460195});
  for (const auto* row : AttentionRows(problem)) {
    std::vector<std::byte> first;
    for (const float fill : {0.0F, 1000.0F, 65504.0F, std::numeric_limits<float>::infinity(),
                             std::numeric_limits<float>::quiet_NaN()}) {
      problem.FillUnusedSlots(fill);
      EXPECT_EQ(CheckRow(problem, *row), "");
      if (first.empty()) first = problem.OutputBits(0);
      EXPECT_EQ(problem.OutputBits(0), first) << row->name << ", fill " << fill;
    }
  }
}

TEST(PagedCacheTest, EntriesPastTheLastPageAreNeverUsed) {
  for (const int page_tokens : {1, 8, 16, 128}) {
    for (const int length :
         {1, page_tokens - 1, page_tokens, page_tokens + 1, 3 * page_tokens + 1}) {
      if (length < 1) continue;
      const ProblemShape shape{.num_heads = 2, .num_kv_heads = 1, .page_tokens = page_tokens};
      AttentionProblem problem(shape, {SeededSequence(shape, 1, length, 70, 1)});
      const int valid = (length + page_tokens - 1) / page_tokens;
      for (const auto* row : AttentionRows(problem)) {
        std::vector<std::byte> first;
        for (const std::uint32_t stray : {kernels::kInvalidPage, std::uint32_t{1} << 30U}) {
          auto& table = problem.PageTable(0);
          std::fill(table.begin() + valid, table.end(), stray);
          ASSERT_EQ(CheckRow(problem, *row), "");
          if (first.empty()) first = problem.OutputBits(0);
          EXPECT_EQ(problem.OutputBits(0), first) << row->name;
        }
      }
    }
  }
}

// A CPU row looks at all entries first; a CUDA row meets the bad one on its way, and what it wrote
// is void.
TEST(PagedCacheTest, AnEntryOutsideThePoolFailsTheLaunch) {
  const ProblemShape shape{.num_heads = 2, .num_kv_heads = 1, .page_tokens = 8};
  AttentionProblem problem(shape, {SeededSequence(shape, 1, 60, 71, 1)});
  const auto last_unit = static_cast<std::uint32_t>(
      (problem.params().pool_bytes - problem.params().page_layout.page_bytes()) /
      kernels::kPageUnitBytes);
  for (const std::uint32_t bad : {kernels::kInvalidPage, std::uint32_t{1} << 30U, last_unit + 1}) {
    const std::uint32_t good = problem.PageTable(0)[3];
    problem.PageTable(0)[3] = bad;
    for (const auto* row : AttentionRows(problem)) {
      EXPECT_EQ(problem.Run(*row).status, LaunchStatus::kPageOutOfPool) << row->name;
      if (row->device == kernels::DeviceKind::kCuda) continue;
      for (const double o : problem.Output(0).o) EXPECT_TRUE(std::isnan(o));
    }
    problem.PageTable(0)[3] = good;
  }
}

TEST(PagedCacheTest, PageOrderChangesNothing) {
  for (const DataType type : kEveryType) {
    ProblemShape shape{
        .type = type, .num_heads = 8, .num_kv_heads = 2, .head_dim = 80, .page_tokens = 16};
    ProblemSequence sequence = SeededSequence(shape, 2, 400, 72, 1);
    sequence.causal = true;
    AttentionProblem one(shape, {sequence});
    shape.page_seed = 99;
    AttentionProblem other(shape, {sequence});
    for (const auto* row : AttentionRows(one)) {
      ASSERT_EQ(one.Run(*row).status, LaunchStatus::kOk);
      ASSERT_EQ(other.Run(*row).status, LaunchStatus::kOk);
      EXPECT_EQ(one.OutputBits(0), other.OutputBits(0)) << row->name;
    }
  }
}

TEST(PagedCacheTest, AnotherSequencesLengthChangesNothing) {
  const ProblemShape shape{.type = DataType::kBf16,
                           .num_heads = 32,
                           .num_kv_heads = 8,
                           .head_dim = 128,
                           .page_tokens = 16};
  const auto batch = [&](int first) {
    std::vector<ProblemSequence> sequences;
    for (const int length : {first, 1000, 120, 500}) {
      sequences.push_back(SeededSequence(shape, 1, length, 47, 1));
    }
    return sequences;
  };
  AttentionProblem longer(shape, batch(900));
  AttentionProblem shorter(shape, batch(800));
  for (const auto* row : AttentionRows(longer)) {
    ASSERT_EQ(CheckRow(longer, *row), "");
    ASSERT_EQ(CheckRow(shorter, *row), "");
    for (int i = 1; i < 4; ++i) {
      const std::vector<double> a = longer.Output(i).o;
      const std::vector<double> b = shorter.Output(i).o;
      for (std::size_t e = 0; e < a.size(); ++e) {
        // 2 units in the last place.
        ASSERT_NEAR(a[e], b[e], 4 * UnitRoundoff(shape.type) * std::fabs(b[e]) + 1e-30)
            << row->name;
      }
    }
  }
}

// Bits under batch_invariant: alone, in a batch, with other threads, in chunks of any size.
TEST(PagedCacheTest, BatchInvariantDecodeKeepsItsBits) {
  const kernels::PlanOptions invariant{.batch_invariant = true};
  for (const DataType type : kEveryType) {
    const ProblemShape shape{
        .type = type, .num_heads = 14, .num_kv_heads = 2, .head_dim = 64, .page_tokens = 16};
    ProblemSequence victim = SeededSequence(shape, 4, 1980, 73, 1);
    victim.causal = true;
    std::vector<ProblemSequence> tokens;
    for (int token = 0; token < 4; ++token) {
      ProblemSequence step = victim;
      step.query_length = 1;
      step.kv_length = 1977 + token;
      step.q.assign(victim.q.begin() + token * 14 * 64, victim.q.begin() + (token + 1) * 14 * 64);
      step.k.resize(step.kv_length * 2 * 64);
      step.v.resize(step.kv_length * 2 * 64);
      tokens.push_back(step);
    }
    AttentionProblem alone(shape, {victim});
    AttentionProblem crowd(shape, {SeededSequence(shape, 1, 3000, 74, 1), victim,
                                   SeededSequence(shape, 3, 17, 75, 1)});
    AttentionProblem steps(shape, tokens);
    for (const auto* row : AttentionRows(alone)) {
      if (row->operation != Operation::kDecode) continue;
      ASSERT_EQ(CheckRow(alone, *row, {.num_threads = 1, .plan = invariant}), "");
      EXPECT_EQ(alone.plan().num_splits, 2);
      ASSERT_EQ(CheckRow(crowd, *row, {.num_threads = 3, .plan = invariant}), "");
      EXPECT_EQ(alone.OutputBits(0), crowd.OutputBits(1)) << row->name;
      ASSERT_EQ(CheckRow(steps, *row, {.plan = invariant}), "");
      const ProblemOutput together = alone.Output(0);
      for (int token = 0; token < 4; ++token) {
        const ProblemOutput single = steps.Output(token);
        for (int i = 0; i < 14 * 64; ++i) {
          ASSERT_EQ(single.o[i], together.o[token * 14 * 64 + i])
              << row->name << " " << TypeName(type) << ", token " << token << ", element " << i;
        }
        for (int head = 0; head < 14; ++head) {
          ASSERT_EQ(single.lse[head], together.lse[token * 14 + head]) << row->name;
        }
      }
    }
  }
}

TEST(PagedCacheTest, TwoRunsAreBitEqual) {
  for (const DataType type : kEveryType) {
    const ProblemShape shape{
        .type = type, .num_heads = 8, .num_kv_heads = 2, .head_dim = 128, .page_tokens = 16};
    AttentionProblem problem(
        shape, {SeededSequence(shape, 1, 2500, 76, 1), SeededSequence(shape, 2, 90, 77, 1)});
    for (const auto* row : AttentionRows(problem)) {
      ASSERT_EQ(problem.Run(*row).status, LaunchStatus::kOk);
      const std::vector<std::byte> first = problem.OutputBits(0);
      ASSERT_EQ(problem.Run(*row).status, LaunchStatus::kOk);
      EXPECT_EQ(problem.OutputBits(0), first) << row->name;
    }
  }
}

}  // namespace
}  // namespace attnd
