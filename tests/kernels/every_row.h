// Runs a problem on every kernel row of this machine, contiguous and paged.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <initializer_list>
#include <vector>

#include "tests/support/attention_problem.h"

namespace attnd {

inline constexpr std::array kEveryType = {kernels::DataType::kFp32, kernels::DataType::kFp16,
                                          kernels::DataType::kBf16};

inline void ExpectEveryRowRight(AttentionProblem& problem, const RunSettings& settings = {}) {
  const auto rows = AttentionRows(problem);
  ASSERT_FALSE(rows.empty());
  for (const kernels::KernelRow* row : rows) {
    EXPECT_EQ(CheckRow(problem, *row, settings), "")
        << "head_dim " << problem.shape().head_dim << ", page " << problem.shape().page_tokens;
  }
}

inline void ExpectEveryRowRight(ProblemShape shape, const std::vector<ProblemSequence>& sequences,
                                std::initializer_list<int> page_tokens = {0, 16}) {
  for (const int tokens : page_tokens) {
    shape.page_tokens = tokens;
    AttentionProblem problem(shape, sequences);
    ExpectEveryRowRight(problem);
  }
}

// The oracle's first four channels of (row, head) against published ones. They were computed with a
// float64 scale; ours is FP32, which moves a logit of 10 by 6e-7.
inline void ExpectStarts(AttentionProblem& problem, int row, int head,
                         std::array<double, 4> expected) {
  const ProblemShape& shape = problem.shape();
  const auto& o = problem.Reference(0).o;
  for (int dim = 0; dim < 4; ++dim) {
    EXPECT_NEAR(o[(row * shape.num_heads + head) * shape.head_dim + dim], expected[dim], 1e-6)
        << "row " << row << ", head " << head << ", dim " << dim;
  }
}

}  // namespace attnd
