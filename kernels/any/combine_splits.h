// Merges the states that the splits of a decode launch left in the partials.
#pragma once

#include "kernels/cuda/cuda_launch_params.h"

namespace attnd::kernels::any {

// Element: the type of o unless partial. Sequences with one split are left alone.
template <class Element>
cudaError_t LaunchCombineSplits(const CudaLaunchParams& params, cudaStream_t stream);

}  // namespace attnd::kernels::any
