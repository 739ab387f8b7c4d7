// Merges partial attention states of disjoint KV ranges: weights exp(lse - max lse), in ascending
// KV order. An empty part (lse -inf) counts for nothing, whatever its o holds; a NaN in any other
// part reaches the result.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/attention_kernels.h"
#include "kernels/cpu/element.h"

namespace attnd::kernels {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

double LargestLse(const MergeParams& params, std::int64_t row) {
  double largest = params.sink_logits != nullptr ? double{params.sink_logits[row]} : kMinusInfinity;
  for (int part = 0; part < params.num_parts; ++part) {
    const double lse = params.lse_parts[part][row];
    if (std::isnan(lse)) return lse;
    largest = std::max(largest, lse);
  }
  return largest;
}

void MergeRow(const MergeParams& params, std::int64_t row) {
  const double largest = LargestLse(params, row);
  std::array<double, kMaxHeadDim> sum{};
  double weight_sum = 0;
  if (largest != kMinusInfinity) {
    for (int part = 0; part < params.num_parts; ++part) {
      const double lse = params.lse_parts[part][row];
      if (lse == kMinusInfinity) continue;
      const double weight = std::exp(lse - largest);
      const float* o = params.o_parts[part] + row * params.head_dim;
      for (int dim = 0; dim < params.head_dim; ++dim) sum[dim] += weight * double{o[dim]};
      weight_sum += weight;
    }
    if (params.sink_logits != nullptr) {
      weight_sum += std::exp(double{params.sink_logits[row]} - largest);
    }
  }
  const bool empty = weight_sum == 0;
  for (int dim = 0; dim < params.head_dim; ++dim) {
    const double value = empty ? 0 : sum[dim] / weight_sum;
    StoreElement(params.o, params.type, row * params.head_dim + dim, static_cast<float>(value));
  }
  if (params.lse != nullptr) {
    params.lse[row] = static_cast<float>(empty ? kMinusInfinity : largest + std::log(weight_sum));
  }
}

}  // namespace

void MergeStates(const MergeParams& params) {
  for (std::int64_t row = 0; row < params.num_rows; ++row) MergeRow(params, row);
}

}  // namespace attnd::kernels
