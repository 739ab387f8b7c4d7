// The read ceiling: every byte of a buffer once, 16 bytes a lane, 8 loads in flight a lane.
#include "kernels/cuda/ceilings.h"

#include <cstdint>

namespace attnd::kernels::any {
namespace {

constexpr int kThreads = 512;
constexpr int kUnroll = 8;

__global__ void __launch_bounds__(kThreads)
    ReadAllKernel(const uint4* data, std::size_t count, float* sink) {
  std::uint32_t seen = 0;
  const std::size_t step = std::size_t{gridDim.x} * kThreads * kUnroll;
  for (std::size_t base = std::size_t{blockIdx.x} * kThreads * kUnroll + threadIdx.x; base < count;
       base += step) {
    uint4 piece[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const std::size_t at = base + std::size_t{kThreads} * i;
      piece[i] = at < count ? __ldg(data + at) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) seen ^= piece[i].x ^ piece[i].y ^ piece[i].z ^ piece[i].w;
  }
  // Never true for the buffer's contents, which the compiler cannot know.
  if (seen == 0x5A17C0DEU) *sink = 1.0F;
}

}  // namespace

cudaError_t LaunchReadAll(const std::byte* data, std::size_t bytes, float* sink,
                          cudaStream_t stream) {
  constexpr unsigned kCtas = 132 * 8;  // several waves on any card
  ReadAllKernel<<<kCtas, kThreads, 0, stream>>>(reinterpret_cast<const uint4*>(data), bytes / 16,
                                                sink);
  return cudaGetLastError();
}

}  // namespace attnd::kernels::any
