#include "kernels/cuda/prefill_traffic.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernel_cost.h"
#include "kernels/key_range.h"

namespace attnd::kernels {
namespace {

// Keys of one KV head of one sequence that a wave of CTAs reads.
struct Stream {
  KeyRange keys;
  std::int64_t wave = -1;  // in which they were last read, and all bytes read before that wave
  double bytes_before = 0;
};

std::int64_t Overlap(const KeyRange& a, const KeyRange& b) {
  return std::max<std::int64_t>(std::min(a.end, b.end) - std::max(a.begin, b.begin), 0);
}

KeyRange Union(const KeyRange& a, const KeyRange& b) {
  if (a.size() == 0) return b;
  if (b.size() == 0) return a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

// Task and head of a CTA, as device::PrefillPlace.
struct Place {
  std::int64_t task, head;
};
Place PlaceOf(const PrefillPlan& plan, std::int64_t cta, int num_heads) {
  const auto tasks = static_cast<std::int64_t>(plan.tasks.size());
  const std::int64_t first_tail_head = num_heads - plan.tail_heads;
  const std::int64_t in_tail = cta - first_tail_head * tasks;
  if (in_tail < 0) return {cta % tasks, cta / tasks};
  return {plan.tail_order[static_cast<std::size_t>(in_tail / plan.tail_heads)],
          first_tail_head + in_tail % plan.tail_heads};
}

// The keys that each task of the plan sees.
std::vector<KeyRange> KeysOfTasks(const AttentionParams& params, const PrefillPlan& plan,
                                  int block_rows) {
  std::vector<KeyRange> keys;
  for (const PrefillTask& task : plan.tasks) {
    const AttentionSequence& sequence = params.sequences[task.sequence];
    const std::int64_t row = std::int64_t{task.query_tile} * block_rows;
    keys.push_back(VisibleKeys(sequence, row,
                               std::min<std::int64_t>(row + block_rows, sequence.query_length)));
  }
  return keys;
}

// K and V of a key of one head.
double KeyBytes(const AttentionParams& params, std::int64_t sequence) {
  return KvBytes(params, params.sequences[sequence], 1) / params.num_kv_heads;
}

// Of lines that were read when `distance` bytes more have passed through a cache, the share that is
// there no longer. The width is that of counted bytes on an H200 (docs/benchmarks/h200_traffic.md).
double MissedShare(double distance, double cache_bytes) {
  constexpr double kWidth = 0.3;
  const double none = (1 - kWidth) * cache_bytes;
  const double all = (1 + kWidth) * cache_bytes;
  if (distance <= none) return 0;
  return distance >= all ? 1 : (distance - none) / (all - none);
}

}  // namespace

double AskedKvBytes(const AttentionParams& params, const PrefillPlan& plan, int block_rows) {
  double bytes = 0;
  const std::vector<KeyRange> keys = KeysOfTasks(params, plan, block_rows);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    bytes += KeyBytes(params, plan.tasks[i].sequence) * static_cast<double>(keys[i].size());
  }
  return bytes * params.num_heads;
}

double RereadKvBytes(const AttentionParams& params, const PrefillPlan& plan, int block_rows,
                     int resident_ctas, double cache_bytes) {
  const std::vector<KeyRange> task_keys = KeysOfTasks(params, plan, block_rows);
  // q and o of a CTA pass through the cache.
  const double row_bytes =
      2.0 * block_rows * params.head_dim * static_cast<double>(ElementBytes(params.data_type));
  const int group = params.num_heads / params.num_kv_heads;
  const std::int64_t ctas = static_cast<std::int64_t>(plan.tasks.size()) * params.num_heads;
  std::vector<Stream> now(static_cast<std::size_t>(params.num_sequences) * params.num_kv_heads);
  std::vector<Stream> before = now;
  std::vector<KeyRange> ever(now.size());
  std::vector<std::size_t> touched;
  double again = 0;
  double all_bytes = 0;
  for (std::int64_t wave = 0; wave * resident_ctas < ctas; ++wave) {
    touched.clear();
    const std::int64_t end = std::min((wave + 1) * resident_ctas, ctas);
    double bytes = row_bytes * static_cast<double>(end - wave * resident_ctas);
    for (std::int64_t cta = wave * resident_ctas; cta < end; ++cta) {
      const Place place = PlaceOf(plan, cta, params.num_heads);
      const auto task = static_cast<std::size_t>(place.task);
      const std::size_t stream =
          static_cast<std::size_t>(plan.tasks[task].sequence) * params.num_kv_heads +
          static_cast<std::size_t>(place.head / group);
      if (now[stream].wave != wave) {
        before[stream] = now[stream];
        now[stream] = {{0, 0}, wave, all_bytes};
        touched.push_back(stream);
      }
      now[stream].keys = Union(now[stream].keys, task_keys[task]);
    }
    for (const std::size_t stream : touched) {
      const double each = KeyBytes(params, static_cast<std::int64_t>(stream) / params.num_kv_heads);
      const KeyRange keys = now[stream].keys;
      bytes += each * static_cast<double>(keys.size());
      auto seen = static_cast<double>(Overlap(keys, ever[stream]));
      if (before[stream].wave >= 0) {
        const double found = 1 - MissedShare(all_bytes - before[stream].bytes_before, cache_bytes);
        seen -= found * static_cast<double>(Overlap(keys, before[stream].keys));
      }
      again += each * std::max(seen, 0.0);
      ever[stream] = Union(ever[stream], keys);
    }
    all_bytes += bytes;
  }
  return again;
}

}  // namespace attnd::kernels
