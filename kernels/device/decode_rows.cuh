// Query rows of a decode kernel: the query tokens of a sequence times the heads of a group, packed
// so that one read of K and V serves them all. Row r is token r / group, head kv_head * group + r %
// group.
#pragma once

#include <cstdint>

#include "kernels/attention_params.h"
#include "kernels/cuda/cuda_launch_params.h"
#include "kernels/device/attention_mask.cuh"
#include "kernels/device/prefill_epilogue.cuh"
#include "kernels/device/score_options.cuh"

namespace attnd::kernels::device {

struct DecodeRows {
  int group, kv_head, num_rows;

  __device__ __forceinline__ DecodeRows(const CudaLaunchParams& params,
                                        const AttentionSequence& sequence, int kv_head_)
      : group(params.group), kv_head(kv_head_), num_rows(sequence.query_length * params.group) {}
  __device__ __forceinline__ int Token(int row) const { return row / group; }
  __device__ __forceinline__ int Head(int row) const { return kv_head * group + row % group; }
};

// Writes dims [dim, dim + kCount) of one finished row: o = accumulated * factor. Returns whether
// all that was stored is finite.
template <class Element, int kCount>
__device__ __forceinline__ bool StoreRow(const CudaLaunchParams& params,
                                         const AttentionSequence& sequence, int token, int head,
                                         int dim, const float (&accumulated)[kCount],
                                         float factor) {
  const std::int64_t origin = token * sequence.o_token_stride + head * sequence.o_head_stride + dim;
  float poison = 0.0F;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (dim + i >= params.attention.head_dim) break;
    const float value = accumulated[i] * factor;
    poison = fmaf(value, 0.0F, poison);
    if (params.attention.partial) {
      static_cast<float*>(sequence.o)[origin + i] = value;
    } else {
      static_cast<Element*>(sequence.o)[origin + i] = static_cast<Element>(value);
    }
  }
  return poison == 0.0F;
}

// The sink of a head where this launch applies it, as a base-2 logit; -inf for none.
__device__ __forceinline__ float SinkLog2(const CudaLaunchParams& params,
                                          const AttentionSequence& sequence, int head) {
  return sequence.sink_logits == nullptr || params.attention.partial
             ? -INFINITY
             : sequence.sink_logits[head] * kLog2E;
}

}  // namespace attnd::kernels::device
