#include "kernels/cuda/prefill_plan.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace attnd::kernels {
namespace {

// Keys that the last tile of a sequence reads, at most.
std::int64_t LongestTile(const AttentionSequence& sequence, int block_q) {
  if (sequence.window_left < 0) return sequence.kv_length;
  const std::int64_t right = sequence.causal ? 0 : std::max<std::int64_t>(sequence.window_right, 0);
  return std::min(sequence.kv_length, sequence.window_left + right + block_q);
}

}  // namespace

std::vector<PrefillTask> PlanPrefillTasks(const AttentionParams& params, int block_q) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(params.num_sequences));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return LongestTile(params.sequences[a], block_q) > LongestTile(params.sequences[b], block_q);
  });
  std::vector<PrefillTask> tasks;
  for (const std::int32_t sequence : order) {
    const int tiles = (params.sequences[sequence].query_length + block_q - 1) / block_q;
    for (int tile = tiles - 1; tile >= 0; --tile) tasks.push_back({sequence, tile});
  }
  return tasks;
}

}  // namespace attnd::kernels
