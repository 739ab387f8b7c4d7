// Fused decode on plain FP32 dot products: the types that a card has no tensor-core row for (FP32
// everywhere, BF16 before sm_80). Implementation and limits: decode_dot.cuh.
#pragma once

#include "kernels/cuda/cuda_launch_params.h"

namespace attnd::kernels::any {

// Query rows (tokens x heads of a group) of one pass over the keys.
inline constexpr int kDotBlockRows = 4;

template <class Element, int kHeadDim>
cudaError_t PrepareDecodeDot(cudaFuncAttributes* attributes);

// grid: num_tasks x num_kv_heads x passes, then the combine where a sequence has several splits.
template <class Element, int kHeadDim>
cudaError_t LaunchDecodeDot(const CudaLaunchParams& params, cudaStream_t stream);

}  // namespace attnd::kernels::any
