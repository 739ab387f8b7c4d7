// The CUDA part of the public kernel table.
#pragma once

#include <span>

#include "kernels/attention_kernels.h"

namespace attnd::kernels {

// In the order of preference that FindKernel follows; empty in a build without CUDA.
std::span<const KernelRow> CudaRows();

}  // namespace attnd::kernels
