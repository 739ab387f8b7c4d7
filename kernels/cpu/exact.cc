#include "kernels/cpu/exact.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "kernels/cpu/cpu_executor.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/kv_rows.h"
#include "kernels/key_range.h"

namespace attnd::kernels {
namespace {

constexpr int kChunkKeys = 128;  // scores kept at a time
constexpr int kChunkRows = 16;   // query rows of one work item
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// Online softmax state of one query row.
struct RowState {
  double row_max = kMinusInfinity;
  double row_sum = 0;
  std::array<double, kMaxHeadDim> accumulator{};
};

template <class Element>
double Dot(const float* q, const Element* k, int head_dim) {
  // Four chains: one would wait for each addition in turn.
  std::array<double, 4> sums{};
  int dim = 0;
  for (; dim + 4 <= head_dim; dim += 4) {
    for (int lane = 0; lane < 4; ++lane) {
      sums[lane] += double{q[dim + lane]} * double{ToFloat(k[dim + lane])};
    }
  }
  for (; dim < head_dim; ++dim) sums[0] += double{q[dim]} * double{ToFloat(k[dim])};
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Score of key `key` after scale, cap, bias and ALiBi, rounded to FP32.
double Score(const AttentionSequence& sequence, int head, std::int64_t row, std::int64_t key,
             double dot) {
  double score = dot * double{sequence.softmax_scale};
  if (sequence.logits_soft_cap > 0) {
    score = sequence.logits_soft_cap * std::tanh(score / sequence.logits_soft_cap);
  }
  if (sequence.bias != nullptr) {
    score += double{
        sequence.bias[head * sequence.bias_head_stride + row * sequence.bias_row_stride + key]};
  }
  if (sequence.alibi_slopes != nullptr) {
    const std::int64_t distance = sequence.query_position + row - sequence.key_position - key;
    score -= double{sequence.alibi_slopes[head]} * static_cast<double>(std::abs(distance));
  }
  return double{static_cast<float>(score)};
}

template <class Element>
void AccumulateChunk(const KvRows& rows, std::int64_t key_begin, int count, const double* scores,
                     int head_dim, RowState& state) {
  double chunk_max = kMinusInfinity;
  bool any_nan = false;
  for (int i = 0; i < count; ++i) {
    any_nan = any_nan || std::isnan(scores[i]);
    chunk_max = std::max(chunk_max, scores[i]);
  }
  if (any_nan) chunk_max = std::numeric_limits<double>::quiet_NaN();
  if (chunk_max == kMinusInfinity) return;  // every key of the chunk is hidden
  const double new_max = any_nan ? chunk_max : std::max(state.row_max, chunk_max);
  if (new_max != state.row_max) {
    const double rescale = state.row_max == kMinusInfinity ? 0 : std::exp(state.row_max - new_max);
    state.row_sum *= rescale;
    for (int dim = 0; dim < head_dim; ++dim) state.accumulator[dim] *= rescale;
    state.row_max = new_max;
  }
  for (int i = 0; i < count; ++i) {
    if (scores[i] == kMinusInfinity) continue;  // hidden: its value is not even read
    const double p = std::exp(scores[i] - new_max);
    state.row_sum += p;
    const auto* v = reinterpret_cast<const Element*>(rows.Value(key_begin + i));
    for (int dim = 0; dim < head_dim; ++dim) {
      state.accumulator[dim] += p * double{ToFloat(v[dim])};
    }
  }
}

void StoreRow(const AttentionParams& params, const AttentionSequence& sequence, int head,
              std::int64_t row, RowState& state) {
  if (sequence.sink_logits != nullptr && !params.partial) {
    const double sink = double{sequence.sink_logits[head]};
    const double new_max =
        std::isnan(state.row_max) ? state.row_max : std::max(state.row_max, sink);
    if (new_max != kMinusInfinity) {
      const double rescale =
          state.row_max == kMinusInfinity ? 0 : std::exp(state.row_max - new_max);
      for (int dim = 0; dim < params.head_dim; ++dim) state.accumulator[dim] *= rescale;
      state.row_sum = state.row_sum * rescale + std::exp(sink - new_max);
      state.row_max = new_max;
    }
  }
  const bool empty = state.row_sum == 0;
  const DataType type = params.partial ? DataType::kFp32 : params.data_type;
  const std::int64_t offset = row * sequence.o_token_stride + head * sequence.o_head_stride;
  for (int dim = 0; dim < params.head_dim; ++dim) {
    const double value = empty ? 0 : state.accumulator[dim] / state.row_sum;
    StoreElement(sequence.o, type, offset + dim, static_cast<float>(value));
  }
  if (sequence.lse != nullptr) {
    sequence.lse[row * params.num_heads + head] =
        empty ? -std::numeric_limits<float>::infinity()
              : static_cast<float>(state.row_max + std::log(state.row_sum));
  }
}

template <class Element>
void ExactRow(const AttentionParams& params, const AttentionSequence& sequence, int head,
              std::int64_t row) {
  const KvRows rows(params, sequence, head / (params.num_heads / params.num_kv_heads));
  std::array<float, kMaxHeadDim> q;
  const std::int64_t q_offset = row * sequence.q_token_stride + head * sequence.q_head_stride;
  for (int dim = 0; dim < params.head_dim; ++dim) {
    q[dim] = LoadElement(sequence.q, params.data_type, q_offset + dim);
  }
  RowState state;
  std::array<double, kChunkKeys> scores;
  const KeyRange keys = VisibleKeys(sequence, row);
  for (std::int64_t begin = keys.begin; begin < keys.end; begin += kChunkKeys) {
    const auto count = static_cast<int>(std::min<std::int64_t>(kChunkKeys, keys.end - begin));
    for (int i = 0; i < count; ++i) {
      const auto* k = reinterpret_cast<const Element*>(rows.Key(begin + i));
      scores[i] = Score(sequence, head, row, begin + i, Dot(q.data(), k, params.head_dim));
    }
    AccumulateChunk<Element>(rows, begin, count, scores.data(), params.head_dim, state);
  }
  StoreRow(params, sequence, head, row, state);
}

}  // namespace

void ExactRows(const AttentionParams& params, int sequence, int head, int row_begin, int row_end) {
  const AttentionSequence& item = params.sequences[sequence];
  for (int row = row_begin; row < row_end; ++row) {
    switch (params.kv_data_type) {
      case DataType::kFp32:
        ExactRow<float>(params, item, head, row);
        break;
      case DataType::kFp16:
        ExactRow<Fp16>(params, item, head, row);
        break;
      case DataType::kBf16:
        ExactRow<Bf16>(params, item, head, row);
        break;
      default:
        break;
    }
  }
}

LaunchResult LaunchExact(const AttentionParams& params, const LaunchPlan& /*plan*/,
                         std::byte* /*workspace*/, CpuExecutor& executor) {
  // One work item is up to kChunkRows rows of one head. Sequences are walked one after the other:
  // this row is not built for speed.
  for (int sequence = 0; sequence < params.num_sequences; ++sequence) {
    const std::int64_t query_length = params.sequences[sequence].query_length;
    const std::int64_t chunks = (query_length + kChunkRows - 1) / kChunkRows;
    ParallelFor(executor, chunks * params.num_heads, [&](std::int64_t item) {
      const auto row = static_cast<int>(item / params.num_heads * kChunkRows);
      const auto row_end = static_cast<int>(std::min<std::int64_t>(row + kChunkRows, query_length));
      ExactRows(params, sequence, static_cast<int>(item % params.num_heads), row, row_end);
    });
  }
  return {};
}

}  // namespace attnd::kernels
