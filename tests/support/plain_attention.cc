#include "tests/support/plain_attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/element.h"
#include "kernels/cpu/kv_rows.h"
#include "kernels/key_range.h"

namespace attnd {

using kernels::AttentionParams;
using kernels::AttentionSequence;

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

float RoundTo(kernels::DataType type, float value) {
  std::uint32_t storage = 0;
  kernels::StoreElement(&storage, type, 0, value);
  return kernels::LoadElement(&storage, type, 0);
}

float Score(const AttentionParams& params, const AttentionSequence& item, std::int64_t token,
            int head, std::int64_t key, const std::byte* k) {
  float dot = 0;
  for (int dim = 0; dim < params.head_dim; ++dim) {
    const std::int64_t at = token * item.q_token_stride + head * item.q_head_stride + dim;
    dot += kernels::LoadElement(item.q, params.data_type, at) *
           kernels::LoadElement(k, params.kv_data_type, dim);
  }
  float s = dot * item.softmax_scale;
  if (item.logits_soft_cap > 0) s = item.logits_soft_cap * std::tanh(s / item.logits_soft_cap);
  if (item.bias != nullptr) {
    s += item.bias[head * item.bias_head_stride + token * item.bias_row_stride + key];
  }
  if (item.alibi_slopes != nullptr) {
    const std::int64_t distance = item.query_position + token - item.key_position - key;
    s -= item.alibi_slopes[head] * std::fabs(static_cast<float>(distance));
  }
  return s;
}

void AttendRow(const AttentionParams& params, const AttentionSequence& item, std::int64_t token,
               int head, ProblemOutput& output) {
  const kernels::KvRows rows(params, item, head / (params.num_heads / params.num_kv_heads));
  const kernels::KeyRange keys = kernels::VisibleKeys(item, token);
  const bool has_sink = item.sink_logits != nullptr && !params.partial;
  std::vector<float> p;
  float largest = has_sink ? item.sink_logits[head] : kMinusInfinity;
  for (std::int64_t key = keys.begin; key < keys.end; ++key) {
    p.push_back(Score(params, item, token, head, key, rows.Key(key)));
    largest = std::max(largest, p.back());
  }
  const bool empty = largest == kMinusInfinity;
  float sum = has_sink ? std::exp(item.sink_logits[head] - largest) : 0;
  for (float& weight : p) {
    weight = empty ? 0 : std::exp(weight - largest);
    sum += weight;
  }
  for (int dim = 0; dim < params.head_dim; ++dim) {
    float o = 0;
    for (std::size_t i = 0; i < p.size() && !empty; ++i) {
      o += RoundTo(params.data_type, p[i] / sum) *
           kernels::LoadElement(rows.Value(keys.begin + static_cast<std::int64_t>(i)),
                                params.kv_data_type, dim);
    }
    output.o.push_back(params.partial ? o : RoundTo(params.data_type, o));
  }
  output.lse.push_back(empty ? kMinusInfinity : largest + std::log(sum));
}

}  // namespace

ProblemOutput PlainAttention(const AttentionParams& params, int sequence) {
  const AttentionSequence& item = params.sequences[sequence];
  ProblemOutput output;
  for (std::int64_t token = 0; token < item.query_length; ++token) {
    for (int head = 0; head < params.num_heads; ++head) {
      AttendRow(params, item, token, head, output);
    }
  }
  return output;
}

}  // namespace attnd
