// The rate of m16n8k8.
#include "kernels/device/mma_rate.cuh"
#include "kernels/ptx/mma_sync.cuh"

namespace attnd::kernels::sm75 {
namespace {

__global__ void __launch_bounds__(kMmaWarps * 32) MmaRateKernel(int iterations, float* sink) {
  const std::uint32_t a = threadIdx.x;
  device::RunMmaChains(iterations, sink,
                       [a](float(&c)[4]) { ptx::MmaM16N8K8(c, a, a + 1, a + 2, __half{}); });
}

}  // namespace

cudaError_t LaunchMmaRate(int ctas, int iterations, float* sink, cudaStream_t stream) {
  MmaRateKernel<<<static_cast<unsigned>(ctas), kMmaWarps * 32, 0, stream>>>(iterations, sink);
  return cudaGetLastError();
}

}  // namespace attnd::kernels::sm75
