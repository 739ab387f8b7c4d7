#include "kernels/reference/attention_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace attnd::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// sign, exponent and fraction fields -> value, for formats with IEEE layout.
double Decode(unsigned bits, int exponent_bits, int fraction_bits) {
  const double sign = (bits >> (exponent_bits + fraction_bits)) != 0 ? -1.0 : 1.0;
  const int exponent = static_cast<int>((bits >> fraction_bits) & ((1U << exponent_bits) - 1));
  const unsigned fraction = bits & ((1U << fraction_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction == 0 ? sign * kInfinity : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp((1U << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

// Where key and value of (token, kv_head) begin.
struct KeyValueRow {
  const void* k;
  const void* v;
};

KeyValueRow FindRow(const AttentionParams& params, const KvView& kv, std::int64_t token,
                    int kv_head) {
  const std::int64_t element = ElementBytes(params.kv_data_type);
  if (kv.page_table == nullptr) {
    const auto* k = static_cast<const std::byte*>(kv.k);
    const auto* v = static_cast<const std::byte*>(kv.v);
    return {k + (token * kv.k_token_stride + kv_head * kv.k_head_stride) * element,
            v + (token * kv.v_token_stride + kv_head * kv.v_head_stride) * element};
  }
  // A page: k[kv_head][token][padded_head_dim], then v of the same shape.
  const PageLayout& layout = params.page_layout;
  const std::int64_t page = kv.page_table[token / layout.page_tokens];
  const std::int64_t row =
      (std::int64_t{kv_head} * layout.page_tokens + token % layout.page_tokens) *
      layout.padded_head_dim * element;
  const std::int64_t v_offset =
      std::int64_t{layout.num_kv_heads} * layout.page_tokens * layout.padded_head_dim * element;
  const std::byte* begin = params.pool + page * kPageUnitBytes;
  return {begin + row, begin + v_offset + row};
}

bool IsVisible(const AttentionSequence& sequence, std::int64_t query, std::int64_t key) {
  const std::int64_t p = sequence.query_position + query;
  const std::int64_t j = sequence.key_position + key;
  if (sequence.causal && j > p) return false;
  if (!sequence.causal && sequence.window_right != kUnlimitedWindow &&
      j - p > sequence.window_right) {
    return false;
  }
  return sequence.window_left == kUnlimitedWindow || p - j <= sequence.window_left;
}

double Score(const AttentionParams& params, const AttentionSequence& sequence, std::int64_t query,
             int head, std::int64_t key, const void* k) {
  double dot = 0;
  for (int dim = 0; dim < params.head_dim; ++dim) {
    const std::int64_t q_index =
        query * sequence.q_token_stride + head * sequence.q_head_stride + dim;
    dot += ReferenceElement(sequence.q, params.data_type, q_index) *
           ReferenceElement(k, params.kv_data_type, dim);
  }
  double score = dot * sequence.softmax_scale;
  if (sequence.logits_soft_cap > 0) {
    score = sequence.logits_soft_cap * std::tanh(score / sequence.logits_soft_cap);
  }
  if (sequence.bias != nullptr) {
    score +=
        sequence.bias[head * sequence.bias_head_stride + query * sequence.bias_row_stride + key];
  }
  if (sequence.alibi_slopes != nullptr) {
    const double distance = std::fabs(
        static_cast<double>(sequence.query_position + query - sequence.key_position - key));
    score -= sequence.alibi_slopes[head] * distance;
  }
  if (std::fabs(score) > double{std::numeric_limits<float>::max()}) {
    return score > 0 ? kInfinity : -kInfinity;
  }
  return score;
}

void AttendRow(const AttentionParams& params, const AttentionSequence& sequence, std::int64_t query,
               int head, double* o, double& lse) {
  const int kv_head = head / (params.num_heads / params.num_kv_heads);
  std::vector<double> scores(sequence.kv_length, -kInfinity);  // -inf: hidden
  double largest = -kInfinity;
  for (std::int64_t key = 0; key < sequence.kv_length; ++key) {
    if (!IsVisible(sequence, query, key)) continue;
    const KeyValueRow row = FindRow(params, sequence.kv, key, kv_head);
    scores[key] = Score(params, sequence, query, head, key, row.k);
    largest = std::isnan(scores[key]) ? scores[key] : std::max(largest, scores[key]);
    if (std::isnan(largest)) break;
  }
  const bool has_sink = sequence.sink_logits != nullptr && !params.partial;
  if (has_sink && !std::isnan(largest)) {
    largest = std::max(largest, double{sequence.sink_logits[head]});
  }
  if (std::isnan(largest)) {
    std::fill_n(o, params.head_dim, largest);
    lse = largest;
    return;
  }
  std::fill_n(o, params.head_dim, 0.0);
  lse = -kInfinity;
  if (largest == -kInfinity) return;
  double sum = has_sink ? std::exp(sequence.sink_logits[head] - largest) : 0;
  for (std::int64_t key = 0; key < sequence.kv_length; ++key) {
    if (scores[key] == -kInfinity) continue;
    const double weight = std::exp(scores[key] - largest);
    const KeyValueRow row = FindRow(params, sequence.kv, key, kv_head);
    sum += weight;
    for (int dim = 0; dim < params.head_dim; ++dim) {
      o[dim] += weight * ReferenceElement(row.v, params.kv_data_type, dim);
    }
  }
  for (int dim = 0; dim < params.head_dim; ++dim) o[dim] /= sum;
  lse = largest + std::log(sum);
}

}  // namespace

double ReferenceElement(const void* data, DataType type, std::int64_t index) {
  if (type == DataType::kFp32) {
    float value = 0;
    std::memcpy(&value, static_cast<const std::byte*>(data) + index * 4, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, static_cast<const std::byte*>(data) + index * 2, sizeof bits);
  return type == DataType::kFp16 ? Decode(bits, 5, 10) : Decode(bits, 8, 7);
}

ReferenceOutput ReferenceAttention(const AttentionParams& params, int sequence) {
  const AttentionSequence& item = params.sequences[sequence];
  ReferenceOutput output;
  const std::int64_t rows = std::int64_t{item.query_length} * params.num_heads;
  output.o.resize(rows * params.head_dim);
  output.lse.resize(rows);
  for (std::int64_t row = 0; row < rows; ++row) {
    AttendRow(params, item, row / params.num_heads, static_cast<int>(row % params.num_heads),
              output.o.data() + row * params.head_dim, output.lse[row]);
  }
  return output;
}

}  // namespace attnd::kernels
