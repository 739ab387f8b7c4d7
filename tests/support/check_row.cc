// The numeric contract as one check: see CheckRow in attention_problem.h.
#include <algorithm>
#include <cmath>
#include <sstream>

#include "tests/support/attention_problem.h"
#include "tests/support/tensor_compare.h"

namespace attnd {

using kernels::DataType;

namespace {

// Tolerance of the public case list, per head.
struct CaseLimits {
  double relative_l2, max_absolute;  // max_absolute in units of max |v|
};

constexpr double kNoLimit = 1e300;

CaseLimits LimitsOf(DataType type, std::size_t num_elements) {
  constexpr std::size_t kEnoughForAMean = 64;
  if (num_elements < kEnoughForAMean) return {kNoLimit, kNoLimit};
  if (type == DataType::kFp32) return {1e-5, 1e-5};
  return type == DataType::kFp16 ? CaseLimits{1e-3, 1.5e-3} : CaseLimits{8e-3, 1.2e-2};
}

// What two right pipelines may differ by when the plain one happens to be exact, relative to |v|.
// In the type: one rounding of the output (1 u) and one of each probability (1 u, weights sum to
// 1). In FP32, u = 2^-24: the logit in base 2 is rounded twice at its own size (lse bounds it), the
// dot product, the exponential and the two sums a few times more.
double Floor(DataType type, double largest_lse) {
  const double fp32 = UnitRoundoff(DataType::kFp32) * (16 + 4 * std::fabs(largest_lse));
  return type == DataType::kFp32 ? fp32 : 2 * UnitRoundoff(type) + fp32;
}

// Differences that the type cannot represent: half its smallest number in FP16; in FP32 and BF16,
// where weights below 2^-126 may be flushed, that.
double Underflow(DataType type) { return type == DataType::kFp16 ? 0x1p-25 : 0x1p-125; }

std::vector<double> Head(const std::vector<double>& o, int head, int num_heads, int head_dim) {
  std::vector<double> slice;
  const auto stride = static_cast<std::size_t>(num_heads) * head_dim;
  for (std::size_t row = 0; row < o.size(); row += stride) {
    const auto begin =
        o.begin() + static_cast<std::ptrdiff_t>(row) + std::ptrdiff_t{head} * head_dim;
    slice.insert(slice.end(), begin, begin + head_dim);
  }
  return slice;
}

double LargestFinite(const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values) {
    if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
  }
  return largest;
}

std::string CheckHead(AttentionProblem& problem, int sequence, int head, const ProblemOutput& got) {
  const ProblemShape& shape = problem.shape();
  const auto slice = [&](const std::vector<double>& o) {
    return Head(o, head, shape.num_heads, shape.head_dim);
  };
  const std::vector<double> expected = slice(problem.Reference(sequence).o);
  const std::vector<double> actual = slice(got.o);
  const double underflow = Underflow(shape.type);
  const TensorError error = CompareTensors(actual, expected, underflow);
  std::ostringstream text;
  text << "sequence " << sequence << ", head " << head << ": ";
  if (error.mismatch_index >= 0) {
    const auto i = static_cast<std::size_t>(error.mismatch_index);
    text << "NaN or infinity differs at "
         << DescribeElement(error.mismatch_index, 1, shape.head_dim, actual[i], expected[i]);
    return text.str();
  }
  const TensorError plain = CompareTensors(slice(problem.Plain(sequence).o), expected, underflow);
  const double max_value = problem.MaxValue(sequence);
  const double floor = Floor(shape.type, LargestFinite(problem.Reference(sequence).lse));
  const double max_allowed = 2 * plain.max_absolute + floor * max_value;
  // Relative to the result: averaging shrinks it below |v|, rounding errors with it.
  const double l2_allowed = 2 * plain.relative_l2 + floor;
  const CaseLimits limits = LimitsOf(shape.type, expected.size());
  // Where the plain pipeline itself cannot meet the published figure, twice its error counts.
  const double max_limit = std::max(limits.max_absolute * max_value, 2 * plain.max_absolute);
  const double l2_limit = std::max(limits.relative_l2, 2 * plain.relative_l2);
  if (error.max_absolute <= std::min(max_allowed, max_limit) &&
      error.relative_l2 <= std::min(l2_allowed, l2_limit)) {
    return {};
  }
  const auto worst = static_cast<std::size_t>(std::max<std::int64_t>(error.worst_index, 0));
  text << "largest error " << error.max_absolute << " (plain " << plain.max_absolute << ", allowed "
       << max_allowed << "), relative L2 " << error.relative_l2 << " (plain " << plain.relative_l2
       << ", allowed " << l2_allowed << "), worst "
       << DescribeElement(error.worst_index, 1, shape.head_dim, actual[worst], expected[worst]);
  return text.str();
}

std::string CheckLse(AttentionProblem& problem, int sequence, const ProblemOutput& got) {
  const std::vector<double>& expected = problem.Reference(sequence).lse;
  const std::vector<double>& plain = problem.Plain(sequence).lse;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const bool same = SameClass(got.lse[i], expected[i]);
    // Rounding of the logit, of the logarithm and of the stored value; rows of 16-bit types may
    // use a shorter exponential, wrong by up to 2^-18, a hundredth of their own rounding.
    const double exponential = problem.shape().type == DataType::kFp32 ? 0 : 0x1p-18;
    const double floor =
        UnitRoundoff(DataType::kFp32) * (16 + 4 * std::fabs(expected[i])) + exponential;
    const double allowed = 2 * std::fabs(plain[i] - expected[i]) + floor;
    if (same && (!std::isfinite(expected[i]) || std::fabs(got.lse[i] - expected[i]) <= allowed)) {
      continue;
    }
    std::ostringstream text;
    text << "sequence " << sequence << ": lse " << i << " is " << got.lse[i] << ", expected "
         << expected[i] << " within " << allowed;
    return text.str();
  }
  return {};
}

}  // namespace

const char* TypeName(DataType type) {
  if (type == DataType::kFp32) return "fp32";
  return type == DataType::kFp16 ? "fp16" : "bf16";
}

double UnitRoundoff(DataType type) {
  if (type == DataType::kFp32) return 0x1p-24;
  return type == DataType::kFp16 ? 0x1p-11 : 0x1p-8;
}

std::string CheckRow(AttentionProblem& problem, const kernels::KernelRow& row,
                     const RunSettings& settings) {
  const auto name = [&] {
    return std::string(row.name) + " " + TypeName(problem.shape().type) + ": ";
  };
  const kernels::LaunchResult result = problem.Run(row, settings);
  if (result.status != kernels::LaunchStatus::kOk) {
    return name() + "launch status " + std::to_string(static_cast<int>(result.status));
  }
  if (!problem.GuardsIntact()) return name() + "wrote outside its outputs";
  for (int sequence = 0; sequence < problem.num_sequences(); ++sequence) {
    const std::string fault = CheckOutput(problem, sequence, problem.Output(sequence));
    if (!fault.empty()) return name() + fault;
  }
  return {};
}

std::string CheckOutput(AttentionProblem& problem, int sequence, const ProblemOutput& got) {
  for (int head = 0; head < problem.shape().num_heads; ++head) {
    std::string fault = CheckHead(problem, sequence, head, got);
    if (!fault.empty()) return fault;
  }
  return CheckLse(problem, sequence, got);
}

}  // namespace attnd
