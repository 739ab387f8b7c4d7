// Re-layout of rows, bytes unchanged, tails filled with zeros.
//
// Algorithm  One CTA takes every kStripes-th token of a job; a warp a row, two bytes a lane and
//            step: neither side may be assumed aligned to more.
// Roofline   reads and writes every byte once, DRAM-bound; a 2-byte access a lane reaches about
//            half of the bandwidth. The tensors that come here are the odd ones.
#include "kernels/any/convert.h"

namespace attnd::kernels::any {
namespace {

constexpr int kWarps = 8;
constexpr int kStripes = 64;

__global__ void __launch_bounds__(kWarps * 32) ConvertKernel(const ConvertJob* jobs) {
  const ConvertJob job = jobs[blockIdx.x];
  const int lane = threadIdx.x % 32;
  for (std::int64_t token = blockIdx.y; token < job.tokens; token += kStripes) {
    for (int head = threadIdx.x / 32; head < job.heads; head += kWarps) {
      const auto* from = reinterpret_cast<const std::uint16_t*>(
          job.from + token * job.from_token_stride + head * job.from_head_stride);
      auto* to = reinterpret_cast<std::uint16_t*>(job.to + token * job.to_token_stride +
                                                  head * job.to_head_stride);
      for (int i = lane; i < job.padded_bytes / 2; i += 32) {
        to[i] = i < job.row_bytes / 2 ? from[i] : std::uint16_t{0};
      }
    }
  }
}

}  // namespace

cudaError_t LaunchConvert(const ConvertJob* jobs, int num_jobs, cudaStream_t stream) {
  if (num_jobs == 0) return cudaSuccess;
  ConvertKernel<<<dim3(static_cast<unsigned>(num_jobs), kStripes), kWarps * 32, 0, stream>>>(jobs);
  return cudaGetLastError();
}

}  // namespace attnd::kernels::any
