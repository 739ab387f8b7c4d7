#include "kernels/cuda/prepare_kernel.h"

namespace attnd::kernels {

cudaError_t PrepareKernel(const void* kernel, std::size_t shared_bytes,
                          cudaFuncAttributes* attributes) {
  cudaFuncAttributes unwanted;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  return error != cudaSuccess
             ? error
             : cudaFuncGetAttributes(attributes == nullptr ? &unwanted : attributes, kernel);
}

}  // namespace attnd::kernels
