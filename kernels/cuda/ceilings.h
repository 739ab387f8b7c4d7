// Rates that a card reaches on nothing but the instruction at hand.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace attnd::kernels {

// Reads `bytes` once, 16 at a time.
namespace any {
cudaError_t LaunchReadAll(const std::byte* data, std::size_t bytes, float* sink,
                          cudaStream_t stream);
}

// `iterations` x kMmaChains mma of every warp, FP16 with FP32 sums, operands in registers.
inline constexpr int kMmaChains = 8;
inline constexpr int kMmaWarps = 8;
namespace sm75 {
cudaError_t LaunchMmaRate(int ctas, int iterations, float* sink, cudaStream_t stream);  // m16n8k8
}
namespace sm80 {
cudaError_t LaunchMmaRate(int ctas, int iterations, float* sink, cudaStream_t stream);  // m16n8k16
}

}  // namespace attnd::kernels
