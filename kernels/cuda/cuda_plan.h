// The inside of a CudaPlan: what a launch is made of, and where its parts lie in the workspace.
//
// Workspace   upload: sequences | prefill tasks | rerun_of | decode tasks | decode plans | convert
//             jobs | tail order | status | flags (zeros), then what kernels write: partials |
//             padded copies | naive's scratch. Every part begins at a 256-byte boundary.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/cuda/cuda_kernel_table.h"
#include "kernels/cuda/cuda_launch_params.h"
#include "kernels/cuda/decode_plan.h"
#include "kernels/cuda_kernels.h"
#include "kernels/naive/naive_plan.h"

namespace attnd::kernels {

// One tensor of one sequence that the row cannot take as it is.
struct PlannedCopy {
  enum Tensor : std::uint8_t { kQuery, kKey, kValue, kOutput };
  std::int32_t sequence = 0;
  Tensor tensor = kQuery;
  std::int64_t offset = 0;  // of the padded copy in the workspace
};

struct WorkspaceLayout {
  std::int64_t sequences = 0, prefill_tasks = 0, rerun_of = 0, decode_tasks = 0, decode_plans = 0;
  std::int64_t jobs = 0, tail_order = 0, status = 0, flags = 0, upload_end = 0;
  std::int64_t partial_o = 0, partial_state = 0, scratch = 0, end = 0;
};

struct CudaPlanDetail {
  const CudaKernelRow* row = nullptr;
  AttentionParams params;                    // sequences: null, they are in host_sequences
  std::vector<AttentionSequence> sequences;  // of the params that were planned
  std::vector<PrefillTask> prefill_tasks;
  int tail_heads = 1;                          // of PrefillPlan
  std::vector<std::int32_t> tail_order;        // of PrefillPlan
  std::vector<std::int32_t> rerun_of;          // reruns only, one a prefill task
  const std::uint32_t* rerun_flags = nullptr;  // of the launch before
  DecodePlan decode;
  naive::NaivePlan naive;
  std::vector<PlannedCopy> inputs, outputs;
  std::int32_t padded_row_bytes = 0;  // of a padded copy's row
  WorkspaceLayout layout;
  std::int64_t flag_words = 0;
};

// Copies that `row` needs for `params`: q, k, v before the launch, o after it; offsets unset.
void PlanCopies(const CudaKernelRow& row, const AttentionParams& params, CudaPlanDetail& detail);
// Bytes of the padded copy of a tensor.
std::int64_t CopyBytes(const CudaPlanDetail& detail, const PlannedCopy& copy);

}  // namespace attnd::kernels
