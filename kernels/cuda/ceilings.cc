#include "kernels/cuda/ceilings.h"

#include <algorithm>

#include "kernels/cuda_kernels.h"

namespace attnd::kernels {
namespace {

// Work per second of the fastest of the runs that fit into `seconds`; 0 where a launch fails.
template <class Launch>
double BestRate(double work, double seconds, Launch launch) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  if (cudaEventCreate(&begin) != cudaSuccess || cudaEventCreate(&end) != cudaSuccess) return 0;
  double best = 0;
  double spent = 0;
  bool failed = launch() != cudaSuccess || cudaStreamSynchronize(nullptr) != cudaSuccess;
  while (!failed && spent < seconds) {
    float ms = 0;
    failed = cudaEventRecord(begin) != cudaSuccess || launch() != cudaSuccess ||
             cudaEventRecord(end) != cudaSuccess || cudaEventSynchronize(end) != cudaSuccess ||
             cudaEventElapsedTime(&ms, begin, end) != cudaSuccess || ms <= 0;
    if (failed) break;
    best = std::max(best, work / (ms * 1e-3));
    spent += ms * 1e-3;
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return failed ? 0 : best;
}

}  // namespace

CudaCeilings MeasureCudaCeilings(double seconds) {
  CudaCeilings ceilings;
  int device = 0;
  int multiprocessors = 0;
  int major = 0;
  std::size_t free = 0;
  std::size_t total = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) !=
          cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaMemGetInfo(&free, &total) != cudaSuccess) {
    return ceilings;
  }
  // Far beyond any L2, and no more than an eighth of what is free.
  const std::size_t bytes = std::min<std::size_t>(std::size_t{4} << 30, free / 8) / 256 * 256;
  void* memory = nullptr;
  if (cudaMalloc(&memory, bytes + 256) != cudaSuccess) return ceilings;
  auto* const data = static_cast<std::byte*>(memory);
  auto* const sink = reinterpret_cast<float*>(data + bytes);
  if (cudaMemset(data, 0x3C, bytes) == cudaSuccess) {
    ceilings.read_bytes_per_second = BestRate(static_cast<double>(bytes), seconds, [&] {
      return any::LaunchReadAll(data, bytes, sink, nullptr);
    });
    constexpr int kIterations = 4000;
    constexpr double kFlopsPerK = 2.0 * 16 * 8;
    const int ctas = 2 * multiprocessors;
    const double products = double{kIterations} * kMmaChains * kMmaWarps * ctas;
    ceilings.m16n8k8_flops_per_second = BestRate(products * kFlopsPerK * 8, seconds, [&] {
      return sm75::LaunchMmaRate(ctas, kIterations, sink, nullptr);
    });
    if (major >= 8) {
      ceilings.m16n8k16_flops_per_second = BestRate(products * kFlopsPerK * 16, seconds, [&] {
        return sm80::LaunchMmaRate(ctas, kIterations, sink, nullptr);
      });
    }
  }
  cudaFree(memory);
  return ceilings;
}

}  // namespace attnd::kernels
