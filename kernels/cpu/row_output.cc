#include "kernels/cpu/row_output.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/element.h"
#include "kernels/cpu/exact.h"

namespace attnd::kernels {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr double kLn2 = 0.693147180559945309417;
constexpr double kLog2E = 1.44269504088896340736;

// The sink is one more logit in the denominator; returns what the accumulator must be scaled by.
double AddSink(double sink_logit, RowResult& result) {
  const double sink = sink_logit * kLog2E;
  const double new_max = std::max(result.row_max, sink);
  if (new_max == kMinusInfinity) return 1;
  const double factor = result.row_max < new_max ? std::exp2(result.row_max - new_max) : 1;
  result.row_sum = result.row_sum * factor + std::exp2(sink - new_max);
  result.row_max = new_max;
  return factor;
}

// values = accumulator * factor / row_sum (0 for an empty row). False: one of them, or the sum, is
// not finite: 0 * finite stays 0, 0 * inf and 0 * NaN do not. In lanes of their own: one sum of all
// would wait for each addition in turn.
bool Normalise(const float* accumulator, float factor, float row_sum, int head_dim, float* values) {
  if (row_sum == 0) {
    std::fill_n(values, head_dim, 0.0F);
    return true;
  }
  constexpr int kLanes = 16;
  float checks[kLanes] = {row_sum * 0.0F};
  int dim = 0;
  for (; dim + kLanes <= head_dim; dim += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      values[dim + lane] = accumulator[dim + lane] * factor / row_sum;
      checks[lane] += values[dim + lane] * 0.0F;
    }
  }
  for (; dim < head_dim; ++dim) {
    values[dim] = accumulator[dim] * factor / row_sum;
    checks[0] += values[dim] * 0.0F;
  }
  float check = 0;
  for (const float lane : checks) check += lane;
  return !std::isnan(check);
}

void StoreValues(void* o, DataType type, std::int64_t offset, const float* values, int head_dim) {
  switch (type) {
    case DataType::kFp16:
      for (int dim = 0; dim < head_dim; ++dim) {
        FromFloat(values[dim], static_cast<Fp16*>(o)[offset + dim]);
      }
      return;
    case DataType::kBf16:
      for (int dim = 0; dim < head_dim; ++dim) {
        FromFloat(values[dim], static_cast<Bf16*>(o)[offset + dim]);
      }
      return;
    default:
      std::copy_n(values, head_dim, static_cast<float*>(o) + offset);
  }
}

}  // namespace

bool FinishRow(const AttentionParams& params, int sequence, int head, std::int64_t token,
               RowResult result) {
  const AttentionSequence& item = params.sequences[sequence];
  float factor = 1;
  if (item.sink_logits != nullptr && !params.partial) {
    factor = static_cast<float>(AddSink(item.sink_logits[head], result));
  }
  const auto row_sum = static_cast<float>(result.row_sum);
  alignas(64) float values[kMaxHeadDim];
  if (!Normalise(result.accumulator, factor, row_sum, params.head_dim, values)) {
    ExactRows(params, sequence, head, static_cast<int>(token), static_cast<int>(token) + 1);
    return true;
  }
  StoreValues(item.o, params.partial ? DataType::kFp32 : params.data_type,
              token * item.o_token_stride + head * item.o_head_stride, values, params.head_dim);
  if (item.lse != nullptr) {
    const bool empty = row_sum == 0;
    item.lse[token * params.num_heads + head] = static_cast<float>(
        empty ? kMinusInfinity : result.row_max * kLn2 + std::log(result.row_sum));
  }
  return false;
}

}  // namespace attnd::kernels
