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
  float checksum = row_sum * 0.0F;  // 0 * finite stays 0; 0 * inf and 0 * NaN do not
  for (int dim = 0; dim < params.head_dim; ++dim) {
    values[dim] = row_sum == 0 ? 0.0F : result.accumulator[dim] * factor / row_sum;
    checksum += values[dim] * 0.0F;
  }
  if (std::isnan(checksum)) {
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
