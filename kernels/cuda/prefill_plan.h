// Order of a prefill launch's CTAs: pure host code.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/cuda_launch_params.h"

namespace attnd::kernels {

struct PrefillPlan {
  std::vector<PrefillTask> tasks;
  // CTAs are ordered (head, task), but the last heads go through the tasks together, in an order of
  // their own: (tail_order, head).
  int tail_heads = 1;
  std::vector<std::int32_t> tail_order;  // indices of tasks
};

// One task per block_q query rows of every sequence, none for a sequence without queries.
//
// Sequences with the longest single tile come first, and inside a sequence the last tile first:
// tiles of one head of one sequence are neighbours and share its K and V in the L2. The last few
// waves of a launch are in strictly descending order instead, over heads and sequences, so that it
// ends on short tiles: a long one that starts late would leave most multiprocessors idle (12 % of
// a causal launch of 16 heads x 16384 tokens). `params.sequences` is host memory.
PrefillPlan PlanPrefill(const AttentionParams& params, int block_q, int num_multiprocessors);

}  // namespace attnd::kernels
