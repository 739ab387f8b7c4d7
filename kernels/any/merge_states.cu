// Merge of partial states by lse, in the order of the parts: m = max(lse_i), w_i = exp(lse_i - m),
// o = sum(w_i o_i) / sum(w_i).
//
// Warps      One a row, 8 rows a CTA; lanes over the dims.
// Roofline   reads num_parts * (head_dim + 1) * 4 bytes a row, DRAM-bound.
#include "kernels/any/merge_states.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/device/score_options.cuh"
#include "kernels/ptx/ex2.cuh"

namespace attnd::kernels::any {
namespace {

constexpr int kWarps = 8;

template <class Element>
__global__ void __launch_bounds__(kWarps * 32)
    MergeStatesKernel(const __grid_constant__ CudaMergeParams params) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= params.num_rows) return;
  const float sink = params.sink_logits == nullptr ? -INFINITY : params.sink_logits[row];
  float largest = sink;
  for (int part = 0; part < params.num_parts; ++part) {
    largest = fmaxf(largest, params.lse_parts[part][row]);
  }
  // All parts empty and no sink: o is 0 and lse -inf. A NaN lse is not empty: fmaxf drops it here,
  // its weight brings it back.
  const float base = largest == -INFINITY ? 0.0F : largest;
  const auto weight = [&](int part) {
    const float lse = params.lse_parts[part][row];
    return lse == -INFINITY ? 0.0F : ptx::Ex2((lse - base) * device::kLog2E);
  };
  float sum = sink == -INFINITY ? 0.0F : ptx::Ex2((sink - base) * device::kLog2E);
  for (int part = 0; part < params.num_parts; ++part) sum += weight(part);
  if (params.o != nullptr) {
    for (int dim = lane; dim < params.head_dim; dim += 32) {
      float total = 0.0F;
      for (int part = 0; part < params.num_parts; ++part) {
        // An empty part's o is never multiplied: it may hold anything.
        if (params.lse_parts[part][row] == -INFINITY) continue;
        total = fmaf(params.o_parts[part][row * params.head_dim + dim], weight(part), total);
      }
      static_cast<Element*>(params.o)[row * params.head_dim + dim] =
          static_cast<Element>(sum == 0.0F ? 0.0F : total / sum);
    }
  }
  if (lane == 0 && params.lse != nullptr) {
    params.lse[row] = sum == 0.0F ? -INFINITY : largest + logf(sum);
  }
}

}  // namespace

template <class Element>
cudaError_t LaunchMergeStates(const CudaMergeParams& params, cudaStream_t stream) {
  if (params.num_rows == 0) return cudaSuccess;
  const auto ctas = static_cast<unsigned>((params.num_rows + kWarps - 1) / kWarps);
  MergeStatesKernel<Element><<<ctas, kWarps * 32, 0, stream>>>(params);
  return cudaGetLastError();
}

template cudaError_t LaunchMergeStates<float>(const CudaMergeParams&, cudaStream_t);
template cudaError_t LaunchMergeStates<__half>(const CudaMergeParams&, cudaStream_t);
template cudaError_t LaunchMergeStates<__nv_bfloat16>(const CudaMergeParams&, cudaStream_t);

}  // namespace attnd::kernels::any
