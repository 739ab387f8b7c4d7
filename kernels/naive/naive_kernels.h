// The kernels around naive's products.
#pragma once

#include "kernels/cuda/cuda_launch_params.h"
#include "kernels/naive/naive_plan.h"

namespace attnd::kernels::naive {

// A chunk's matrices in device memory.
struct ChunkMatrices {
  NaiveChunk chunk;
  std::int32_t width = 0;
  void *q = nullptr, *k = nullptr, *v = nullptr;
  float* s = nullptr;
  void *p = nullptr, *o = nullptr;
};

template <class Element>
cudaError_t LaunchGather(const CudaLaunchParams& params, const ChunkMatrices& matrices,
                         cudaStream_t stream);
template <class Element>
cudaError_t LaunchSoftmax(const CudaLaunchParams& params, const ChunkMatrices& matrices,
                          cudaStream_t stream);
template <class Element>
cudaError_t LaunchScatter(const CudaLaunchParams& params, const ChunkMatrices& matrices,
                          cudaStream_t stream);

}  // namespace attnd::kernels::naive
