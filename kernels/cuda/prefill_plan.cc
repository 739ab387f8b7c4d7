#include "kernels/cuda/prefill_plan.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "kernels/key_range.h"

namespace attnd::kernels {
namespace {

// CTAs a multiprocessor that go in descending order at the end: two waves of two. Fewer leave a
// tail, more have more K and V than an L2 holds (64 KiB a CTA at d 128: 4 x 132 are 33 MiB).
constexpr int kTailCtas = 4;

struct Tile {
  PrefillTask task;
  std::int64_t num_keys;  // that some row of it sees
};

std::int64_t MostKeys(const AttentionSequence& sequence, int block_q) {
  const std::int64_t rows = sequence.query_length;
  return VisibleKeys(sequence, std::max<std::int64_t>(rows - block_q, 0), rows).size();
}

// Tiles in the order of `sequences`, and in each the last tile first.
std::vector<Tile> TilesOf(const AttentionParams& params, const std::vector<std::int32_t>& sequences,
                          int block_q) {
  std::vector<Tile> tiles;
  for (const std::int32_t i : sequences) {
    const AttentionSequence& sequence = params.sequences[i];
    for (int tile = (sequence.query_length + block_q - 1) / block_q - 1; tile >= 0; --tile) {
      const int row = tile * block_q;
      const int end = std::min(row + block_q, sequence.query_length);
      tiles.push_back({{i, tile}, VisibleKeys(sequence, row, end).size()});
    }
  }
  return tiles;
}

}  // namespace

PrefillPlan PlanPrefill(const AttentionParams& params, int block_q, int num_multiprocessors) {
  std::vector<std::int32_t> sequences(static_cast<std::size_t>(params.num_sequences));
  std::iota(sequences.begin(), sequences.end(), 0);
  std::vector<std::int64_t> most_keys;
  for (const std::int32_t i : sequences) {
    most_keys.push_back(MostKeys(params.sequences[i], block_q));
  }
  std::stable_sort(sequences.begin(), sequences.end(), [&](std::int32_t a, std::int32_t b) {
    return most_keys[static_cast<std::size_t>(a)] > most_keys[static_cast<std::size_t>(b)];
  });
  const std::vector<Tile> tiles = TilesOf(params, sequences, block_q);

  PrefillPlan plan;
  for (const Tile& tile : tiles) plan.tasks.push_back(tile.task);
  const auto tail_ctas = static_cast<std::size_t>(kTailCtas) * num_multiprocessors;
  while (plan.tail_heads < params.num_heads && plan.tail_heads * tiles.size() < tail_ctas) {
    ++plan.tail_heads;
  }
  plan.tail_order.resize(tiles.size());
  std::iota(plan.tail_order.begin(), plan.tail_order.end(), 0);
  const auto in_tail = static_cast<std::ptrdiff_t>(std::min(tail_ctas, tiles.size()));
  std::stable_sort(plan.tail_order.end() - in_tail, plan.tail_order.end(),
                   [&](std::int32_t a, std::int32_t b) {
                     return tiles[static_cast<std::size_t>(a)].num_keys >
                            tiles[static_cast<std::size_t>(b)].num_keys;
                   });
  return plan;
}

}  // namespace attnd::kernels
