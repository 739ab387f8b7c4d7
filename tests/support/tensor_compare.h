// Comparison of kernel results with float64: error measures, and the positions of NaN and infinity.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <sstream>
#include <string>

namespace attnd {

struct TensorError {
  double max_absolute = 0;  // over finite elements
  double relative_l2 = 0;
  double max_expected = 0;  // largest |expected|
  std::int64_t worst_index = -1;
  // First element that is NaN or infinite on one side only, or infinite with the other sign; -1.
  std::int64_t mismatch_index = -1;
};

inline bool SameClass(double got, double expected) {
  if (std::isnan(expected)) return std::isnan(got);
  if (std::isinf(expected)) return got == expected;
  return std::isfinite(got);
}

// Differences up to `underflow` count as none.
inline TensorError CompareTensors(std::span<const double> got, std::span<const double> expected,
                                  double underflow) {
  TensorError error;
  double difference_squares = 0;
  double expected_squares = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!SameClass(got[i], expected[i])) {
      if (error.mismatch_index < 0) error.mismatch_index = static_cast<std::int64_t>(i);
      continue;
    }
    if (!std::isfinite(expected[i])) continue;
    double difference = std::fabs(got[i] - expected[i]);
    if (difference <= underflow) difference = 0;
    if (difference > error.max_absolute) {
      error.max_absolute = difference;
      error.worst_index = static_cast<std::int64_t>(i);
    }
    error.max_expected = std::fmax(error.max_expected, std::fabs(expected[i]));
    difference_squares += difference * difference;
    expected_squares += expected[i] * expected[i];
  }
  if (difference_squares > 0) {
    error.relative_l2 = std::sqrt(difference_squares / std::fmax(expected_squares, 1e-300));
  }
  return error;
}

// "[row 3, head 1, dim 17]: got 0.25, expected 0.5" for index into [row][head][dim].
inline std::string DescribeElement(std::int64_t index, int num_heads, int head_dim, double got,
                                   double expected) {
  std::ostringstream text;
  text.precision(9);
  text << "[row " << index / (num_heads * head_dim) << ", head " << index / head_dim % num_heads
       << ", dim " << index % head_dim << "]: got " << got << ", expected " << expected;
  return text.str();
}

}  // namespace attnd
