// How a decode batch is cut into CTAs: pure host code, computed once a batch shape and shared by
// all layers of a step.
#pragma once

#include <vector>

#include "kernels/cuda/cuda_kernel_table.h"
#include "kernels/cuda/cuda_launch_params.h"

namespace attnd::kernels {

// Splits begin at multiples of this many tokens of the sequence's own numbering: one step of a CTA.
inline constexpr int kDecodeStepTokens = 64;
// Split length under batch_invariant: the same wherever the sequence runs. Splits then begin at
// multiples of it on the position axis, if key_position is a multiple of a step; else at multiples
// in the sequence's own numbering.
inline constexpr int kInvariantSplitTokens = 1024;

struct DecodePlan {
  std::vector<DecodeTask> tasks;              // longest first
  std::vector<DecodeSequencePlan> sequences;  // one a sequence of the batch
  std::int64_t partial_rows = 0;              // rows of partial_o and partial_state
  int max_query_rows = 0;                     // largest query_length * group
  int max_splits = 0;
};

struct DecodePlanOptions {
  int num_multiprocessors = 1;
  int block_rows = 16;    // query rows of one pass over the keys
  int forced_splits = 0;  // 0: chosen here
  bool batch_invariant = false;
};

// `params.sequences` is host memory.
DecodePlan PlanDecode(const AttentionParams& params, const DecodePlanOptions& options);

}  // namespace attnd::kernels
