// Head ratios, head sizes, ragged batches, strides and large offsets, on every kernel row.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/every_row.h"
#include "tests/support/random_tensors.h"

namespace attnd {
namespace {

using kernels::DataType;
using kernels::LaunchStatus;

TEST(ShapesTest, EveryHeadRatioDecodesAndPrefills) {
  ProblemShape anchor_shape{
      .type = DataType::kBf16, .num_heads = 28, .num_kv_heads = 4, .head_dim = 128};
  AttentionProblem anchor(anchor_shape, {SeededSequence(anchor_shape, 1, 257, 11, 2)});
  ExpectStarts(anchor, 0, 27, {-0.091634845, -0.095944703, 0.197494184, -0.068430932});
  ExpectEveryRowRight(anchor);
  for (const auto& [heads, kv_heads] :
       {std::pair{5, 1}, {40, 8}, {24, 4}, {28, 4}, {64, 4}, {33, 3}, {32, 1}, {48, 1}}) {
    const ProblemShape shape{
        .type = DataType::kBf16, .num_heads = heads, .num_kv_heads = kv_heads, .head_dim = 128};
    ProblemSequence decode = SeededSequence(shape, 1, 257, 11, 2);
    ProblemSequence prefill = SeededSequence(shape, 19, 40, 12, 2);
    decode.causal = prefill.causal = true;
    ExpectEveryRowRight(shape, {decode, prefill}, {16});
  }
}

TEST(ShapesTest, IndivisibleHeadsAreRefused) {
  for (const auto& [heads, kv_heads] : {std::pair{33, 2}, {3, 2}, {2, 4}}) {
    const ProblemShape good{.num_heads = kv_heads, .num_kv_heads = kv_heads, .head_dim = 32};
    AttentionProblem problem(good, {SeededSequence(good, 8, 8, 1, 1)});
    for (const auto* row : AttentionRows(problem)) {
      ASSERT_EQ(problem.Run(*row).status, LaunchStatus::kOk);
      kernels::AttentionParams params = problem.params();
      params.num_heads = heads;
      kernels::CpuExecutor executor(2);
      const kernels::LaunchPlan plan = problem.plan();
      EXPECT_EQ(kernels::Launch(plan, params, nullptr, executor).status,
                LaunchStatus::kUnsupported);
    }
  }
}

TEST(ShapesTest, NoRowServesAHeadDimOutsideItsRange) {
  for (const auto operation :
       {kernels::Operation::kPrefill, kernels::Operation::kDecode, kernels::Operation::kNaive}) {
    for (const int head_dim : {-1, 0, kernels::kMaxHeadDim + 1}) {
      EXPECT_EQ(kernels::FindKernel({operation, DataType::kFp32, DataType::kFp32, head_dim, 0}, {}),
                nullptr);
    }
  }
}

TEST(ShapesTest, PaddedHeadDimsKeepTheTrueScale) {
  for (const int head_dim : {40, 72, 80, 96, 120}) {
    const ProblemShape shape{
        .type = DataType::kFp16, .num_heads = 2, .num_kv_heads = 2, .head_dim = head_dim};
    ProblemSequence prefill = SeededSequence(shape, 33, 65, 12, 2);
    ProblemSequence decode = SeededSequence(shape, 1, 65, 12, 2);
    prefill.causal = decode.causal = true;
    ExpectEveryRowRight(shape, {prefill, decode});
  }
}

TEST(ShapesTest, EveryHeadDimOfEveryType) {
  for (const DataType type : kEveryType) {
    for (const int head_dim : {1, 2, 3, 8, 17, 31, 32, 33, 64, 100, 128, 160, 255, 256}) {
      const ProblemShape shape{
          .type = type, .num_heads = 3, .num_kv_heads = 1, .head_dim = head_dim};
      ProblemSequence sequence = SeededSequence(shape, 2, 67, 21, 1);
      sequence.causal = true;
      ExpectEveryRowRight(shape, {sequence});
    }
  }
}

TEST(ShapesTest, LengthsAroundEveryTileBoundary) {
  for (const DataType type : kEveryType) {
    const ProblemShape shape{.type = type, .num_heads = 4, .num_kv_heads = 2, .head_dim = 64};
    std::vector<ProblemSequence> sequences;
    for (const int kv_length : {1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 257, 521}) {
      for (const int query_length : {1, 3}) {
        if (query_length > kv_length) continue;
        ProblemSequence sequence = SeededSequence(shape, query_length, kv_length, kv_length, 1);
        sequence.causal = true;
        sequence.key_position = kv_length % 5 * 7;  // tiles start anywhere
        sequences.push_back(sequence);
      }
    }
    ExpectEveryRowRight(shape, sequences);
  }
}

TEST(ShapesTest, ZeroLengthMembersAreEmptyResults) {
  const ProblemShape shape{.type = DataType::kBf16, .num_heads = 9, .num_kv_heads = 3};
  const auto batch = [&](const std::vector<std::pair<int, int>>& lengths) {
    std::vector<ProblemSequence> sequences;
    for (const auto& [q, kv] : lengths) {
      sequences.push_back(SeededSequence(shape, q, kv, 50 + kv, 1));
      sequences.back().causal = true;
    }
    return sequences;
  };
  ExpectEveryRowRight(shape, batch({{0, 0}, {1, 3}, {0, 0}, {1, 5}}));
  ExpectEveryRowRight(shape, batch({{0, 0}, {0, 0}, {0, 0}, {1, 1}}));
  ExpectEveryRowRight(shape, batch({{0, 0}, {1, 3}, {0, 0}, {2, 5}}));
  ExpectEveryRowRight(shape, batch({{0, 7}, {3, 0}, {0, 0}}));
  ExpectEveryRowRight(shape, {});
}

TEST(ShapesTest, StridedViewsAgreeBitForBit) {
  for (const int heads : {16, 62}) {  // as many heads as tokens: no guessing from the shape
    ProblemShape shape{
        .type = DataType::kBf16, .num_heads = heads, .num_kv_heads = heads, .head_dim = 128};
    const ProblemSequence sequence = SeededSequence(shape, 4, 62, 30, 1);
    ProblemShape strided = shape;
    strided.row_padding = 8;
    strided.heads_first = true;
    AttentionProblem plain(shape, {sequence});
    AttentionProblem view(strided, {sequence});
    for (const auto* row : AttentionRows(plain)) {
      ASSERT_EQ(plain.Run(*row).status, LaunchStatus::kOk);
      ASSERT_EQ(view.Run(*row).status, LaunchStatus::kOk);
      EXPECT_EQ(plain.OutputBits(0), view.OutputBits(0)) << row->name;
    }
  }
}

TEST(ShapesTest, MoreThan65535SequencesOrHeads) {
  ProblemShape shape{.head_dim = 16};
  std::vector<ProblemSequence> sequences;
  const ProblemSequence all = SeededSequence(shape, 70000, 140000, 29, 1);
  for (int i = 0; i < 70000; ++i) {
    ProblemSequence sequence;
    sequence.kv_length = 2;
    sequence.q.assign(all.q.begin() + i * 16, all.q.begin() + (i + 1) * 16);
    sequence.k.assign(all.k.begin() + i * 32, all.k.begin() + (i + 1) * 32);
    sequence.v.assign(all.v.begin() + i * 32, all.v.begin() + (i + 1) * 32);
    sequences.push_back(sequence);
  }
  AttentionProblem many(shape, sequences);
  shape.num_heads = shape.num_kv_heads = 70000;
  AttentionProblem wide(shape, {SeededSequence(shape, 1, 2, 29, 1)});
  for (const auto* row : AttentionRows(many)) {
    ASSERT_EQ(many.Run(*row).status, LaunchStatus::kOk);
    const bool cuda = row->device == kernels::DeviceKind::kCuda;
    // 65535 heads are a documented limit of the CUDA rows.
    ASSERT_EQ(wide.Run(*row).status, cuda ? LaunchStatus::kUnsupported : LaunchStatus::kOk);
    const std::vector<double> heads = wide.Output(0).o;
    for (const int i : {0, 65534, 65535, 65536, 69999}) {
      const std::vector<double> o = many.Output(i).o;
      for (int dim = 0; dim < 16; ++dim) {
        ASSERT_NEAR(o[dim], many.Reference(i).o[dim], 1e-5) << row->name << ", sequence " << i;
        if (cuda) continue;
        ASSERT_NEAR(heads[i * 16 + dim], wide.Reference(0).o[i * 16 + dim], 1e-5)
            << row->name << ", head " << i;
      }
    }
    for (const double o : heads) ASSERT_EQ(std::isnan(o), cuda) << row->name;
    for (int i = 0; i < 70000; ++i) {
      ASSERT_FALSE(std::isnan(many.Output(i).o[0])) << row->name << ", sequence " << i;
    }
  }
}

}  // namespace
}  // namespace attnd
