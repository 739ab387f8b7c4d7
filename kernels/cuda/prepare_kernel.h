// What every row does once a device before its first launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace attnd::kernels {

// Allows the kernel its dynamic shared memory and loads its code; attributes may be null.
cudaError_t PrepareKernel(const void* kernel, std::size_t shared_bytes,
                          cudaFuncAttributes* attributes);

}  // namespace attnd::kernels
