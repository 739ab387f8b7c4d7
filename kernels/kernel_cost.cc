// The cost model: exact useful FLOPs, each operand once (minimum), and what a row family moves
// (expected). Everything in double: a large launch passes 2^63 bytes of score traffic only in
// theory, but FLOPs are rates' numerators and end as double anyway.
#include "kernels/kernel_cost.h"

#include <algorithm>

#include "kernels/attention_kernels.h"

namespace attnd::kernels {
namespace {

// K and V of one KV head stay in the second-level cache between query tiles up to this size (1 MiB
// a core is the smallest one among AVX-512 servers).
constexpr double kCachedHeadBytes = 1 << 20;

struct SequenceBytes {
  double q = 0, kv = 0, bias = 0, page_table = 0;  // each operand once, read
  double o = 0, lse = 0;                           // written
};

SequenceBytes CountBytes(const AttentionParams& params, const AttentionSequence& sequence,
                         const SequenceWork& work) {
  const double rows = static_cast<double>(sequence.query_length) * params.num_heads;
  SequenceBytes bytes;
  bytes.q = rows * params.head_dim * ElementBytes(params.data_type);
  bytes.kv = 2.0 * static_cast<double>(work.visible_keys.size()) * params.num_kv_heads *
             params.head_dim * ElementBytes(params.kv_data_type);
  if (sequence.bias != nullptr) {
    const int bias_heads = sequence.bias_head_stride == 0 ? 1 : params.num_heads;
    bytes.bias = 4.0 * bias_heads * static_cast<double>(work.visible_pairs);
  }
  if (sequence.kv.page_table != nullptr) {
    bytes.page_table =
        4.0 * static_cast<double>(work.visible_keys.size()) / params.page_layout.page_tokens;
  }
  bytes.o = rows * params.head_dim * (params.partial ? 4 : ElementBytes(params.data_type));
  if (sequence.lse != nullptr) bytes.lse = rows * 4;
  return bytes;
}

// Scores go to memory in FP32 and come back, probabilities too; the rectangle is never skipped.
// Pages are gathered first (read as pages, written and read as rows).
void AddNaiveTraffic(const KernelRow& row, const AttentionParams& params,
                     const AttentionSequence& sequence, const SequenceBytes& bytes,
                     KernelCost& cost) {
  const bool cuda = row.device == DeviceKind::kCuda;
  const double rectangle = static_cast<double>(sequence.query_length) * params.num_heads *
                           static_cast<double>(sequence.kv_length);
  // The CPU has no product of FP16: K and V are widened there.
  const bool widened = params.data_type == DataType::kFp16 && !cuda;
  const double probability_bytes = widened ? 4 : ElementBytes(params.data_type);
  const double kv_once = 2.0 * static_cast<double>(sequence.kv_length) * params.num_kv_heads *
                         params.head_dim * ElementBytes(params.kv_data_type);
  double kv_read = kv_once;
  double kv_written = 0;
  if (sequence.kv.page_table != nullptr || widened) {
    const double copy = widened ? kv_once * 2 : kv_once;
    kv_read = KvBytes(params, sequence, sequence.kv_length) + copy;
    kv_written = copy;
  }
  const double bias_heads =
      sequence.bias == nullptr ? 0 : (sequence.bias_head_stride == 0 ? 1 : params.num_heads);
  const double bias = 4.0 * bias_heads * static_cast<double>(sequence.query_length) *
                      static_cast<double>(sequence.kv_length);
  // CUDA: q into and o out of the products' layout.
  const double regrouped = cuda ? bytes.q + bytes.o : 0;
  cost.expected_read_bytes +=
      bytes.q + kv_read + bias + bytes.page_table + regrouped + rectangle * (4 + probability_bytes);
  cost.expected_write_bytes +=
      bytes.o + bytes.lse + kv_written + regrouped + rectangle * (4 + probability_bytes);
}

// Query tiles pass over K and V one after the other; heads that no cache holds are read again. On a
// CUDA device they run side by side: what is read again there depends on the plan
// (cuda/prefill_traffic.h), which adds it.
void AddTiledTraffic(const KernelRow& row, const AttentionParams& params,
                     const AttentionSequence& sequence, const SequenceWork& work,
                     const SequenceBytes& bytes, int tile_rows, KernelCost& cost) {
  const double kv = KvBytes(params, sequence, work.visible_keys.size());
  double passes = 1;
  if (row.device != DeviceKind::kCuda && kv / params.num_kv_heads > kCachedHeadBytes &&
      sequence.query_length > tile_rows) {
    // Rows x keys that the tiles visit, over the keys there are: the mean number of visits.
    passes = static_cast<double>(work.visible_pairs) / tile_rows /
             static_cast<double>(work.visible_keys.size());
  }
  cost.expected_read_bytes += bytes.q + kv * std::max(passes, 1.0) + bytes.bias + bytes.page_table;
  cost.expected_write_bytes += bytes.o + bytes.lse;
}

void AddExpected(const KernelRow& row, const AttentionParams& params,
                 const AttentionSequence& sequence, const SequenceWork& work,
                 const SequenceBytes& bytes, KernelCost& cost) {
  constexpr int kPrefillTileRows = 128;
  switch (row.operation) {
    case Operation::kNaive:
      AddNaiveTraffic(row, params, sequence, bytes, cost);
      return;
    case Operation::kExact:
      AddTiledTraffic(row, params, sequence, work, bytes, 1, cost);
      return;
    case Operation::kDecode: {
      const int group = params.num_heads / params.num_kv_heads;
      AddTiledTraffic(row, params, sequence, work, bytes, std::max(1, kMaxDecodeRows / group),
                      cost);
      return;
    }
    default:
      AddTiledTraffic(row, params, sequence, work, bytes, kPrefillTileRows, cost);
      return;
  }
}

}  // namespace

SequenceWork MeasureSequence(const AttentionSequence& sequence) {
  SequenceWork work;
  if (!sequence.causal && sequence.window_left == kUnlimitedWindow &&
      sequence.window_right == kUnlimitedWindow) {
    if (sequence.query_length > 0) work.visible_keys = {0, sequence.kv_length};
    work.visible_pairs = sequence.query_length * sequence.kv_length;
    return work;
  }
  for (std::int64_t row = 0; row < sequence.query_length; ++row) {
    work.visible_pairs += VisibleKeys(sequence, row).size();
  }
  work.visible_keys = VisibleKeys(sequence, 0, sequence.query_length);
  return work;
}

double KvBytes(const AttentionParams& params, const AttentionSequence& sequence,
               std::int64_t num_keys) {
  const int row_elements =
      sequence.kv.page_table != nullptr ? params.page_layout.padded_head_dim : params.head_dim;
  return 2.0 * static_cast<double>(num_keys) * params.num_kv_heads * row_elements *
         ElementBytes(params.kv_data_type);
}

KernelCost AttentionCost(const KernelRow& row, const AttentionParams& params) {
  KernelCost cost;
  for (int i = 0; i < params.num_sequences; ++i) {
    const AttentionSequence& sequence = params.sequences[i];
    const SequenceWork work = MeasureSequence(sequence);
    const SequenceBytes bytes = CountBytes(params, sequence, work);
    cost.flops +=
        4.0 * params.head_dim * params.num_heads * static_cast<double>(work.visible_pairs);
    cost.min_read_bytes += bytes.q + bytes.kv + bytes.bias + bytes.page_table;
    cost.min_write_bytes += bytes.o + bytes.lse;
    AddExpected(row, params, sequence, work, bytes, cost);
  }
  return cost;
}

KernelCost AppendCost(const AppendParams& params) {
  const PageLayout& layout = params.page_layout;
  const double element = ElementBytes(layout.data_type);
  double tokens = 0;
  double page_entries = 0;
  for (int i = 0; i < params.num_sequences; ++i) {
    tokens += params.sequences[i].num_tokens;
    page_entries += (params.sequences[i].num_tokens + layout.page_tokens - 1) / layout.page_tokens;
  }
  KernelCost cost;
  const double rows = 2 * tokens * layout.num_kv_heads;
  cost.min_read_bytes = rows * layout.head_dim * element + 4 * page_entries;
  cost.min_write_bytes = rows * layout.padded_head_dim * element;
  cost.expected_read_bytes = cost.min_read_bytes;
  cost.expected_write_bytes = cost.min_write_bytes;
  return cost;
}

}  // namespace attnd::kernels
