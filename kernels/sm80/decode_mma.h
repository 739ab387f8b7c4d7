// Fused decode attention on tensor cores for sm_80 and newer. Implementation and limits:
// decode_mma.cuh.
#pragma once

#include "kernels/cuda/cuda_launch_params.h"

namespace attnd::kernels::sm80 {

// Query rows (query tokens x group) of one pass over the keys.
inline constexpr int kDecodeBlockRows = 16;

template <class Element, int kHeadDim>
cudaError_t PrepareDecodeMma(cudaFuncAttributes* attributes);

// One launch, and a second that merges splits where the plan has any.
template <class Element, int kHeadDim>
cudaError_t LaunchDecodeMma(const CudaLaunchParams& params, cudaStream_t stream);

}  // namespace attnd::kernels::sm80
