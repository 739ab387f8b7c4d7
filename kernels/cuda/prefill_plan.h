// Order of a prefill launch's CTAs: pure host code.
#pragma once

#include <vector>

#include "kernels/cuda/cuda_launch_params.h"

namespace attnd::kernels {

// One task per block_q query rows of every sequence, none for a sequence without queries. Sequences
// with the longest single tile come first, and inside a sequence the last tile first: under a
// causal mask that is descending work, so that the launch ends on short tiles, while the tiles of
// one sequence stay neighbours and share its K and V in the L2. `params.sequences` is host memory.
std::vector<PrefillTask> PlanPrefillTasks(const AttentionParams& params, int block_q);

}  // namespace attnd::kernels
