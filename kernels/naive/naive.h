// Naive attention: scores in device memory between two library products. The honest comparison.
#pragma once

#include "kernels/cuda/cuda_launch_params.h"
#include "kernels/naive/naive_plan.h"

namespace attnd::kernels::naive {

// host: the sequences as in params.attention.sequences, in host memory. scratch: plan.scratch bytes
// of device memory. Needs CublasFault() == nullptr.
template <class Element>
cudaError_t LaunchNaive(const CudaLaunchParams& params, const NaivePlan& plan,
                        const AttentionSequence* host, std::byte* scratch, cudaStream_t stream);

}  // namespace attnd::kernels::naive
