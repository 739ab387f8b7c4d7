// Exact attention without tensor cores: FP32, BF16 where the card lacks it, unaligned rows, and the
// reruns of tiles that a tensor-core row flagged as non-finite. Implementation: prefill_simt.cuh.
#pragma once

#include "kernels/cuda/cuda_launch_params.h"

namespace attnd::kernels::any {

// Query rows of one PrefillTask.
constexpr int SimtBlockQ(int head_dim_bucket) { return head_dim_bucket == 256 ? 16 : 32; }

template <class Element, int kHeadDim>
cudaError_t PreparePrefillSimt(cudaFuncAttributes* attributes);

// grid: num_tasks x num_heads. With params.rerun_of set, only (task, head) pairs whose flag is set
// in params.rerun_flags are computed.
template <class Element, int kHeadDim>
cudaError_t LaunchPrefillSimt(const CudaLaunchParams& params, cudaStream_t stream);

}  // namespace attnd::kernels::any
