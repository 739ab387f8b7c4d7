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
#include "kernels/ptx/ex2.cuh"

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

// Merges the warps' states of every row and writes o, or the split's partial state. `states` has
// accumulator [kWarps][kRows][kHeadDim], row_max and row_sum [kWarps][kRows] of the Tile.
template <class Element, class Tile, class WarpStates>
__device__ __forceinline__ void StoreDecodeRows(const CudaLaunchParams& params,
                                                const WarpStates& states,
                                                const AttentionSequence& sequence,
                                                const DecodeRows& rows, const DecodeTask& task,
                                                const DecodeSequencePlan& plan, int first_row,
                                                int warp, int lane) {
  // One warp a row, rows in turn; each lane Tile::kHeadDim / 32 neighbouring dims.
  constexpr int kDims = Tile::kHeadDim / 32;
  for (int i = warp; i < Tile::kRows && first_row + i < rows.num_rows; i += Tile::kWarps) {
    const int token = rows.Token(first_row + i);
    const int head = rows.Head(first_row + i);
    float row_max = states.row_max[0][i];
#pragma unroll
    for (int w = 1; w < Tile::kWarps; ++w) row_max = fmaxf(row_max, states.row_max[w][i]);
    float row_sum = 0.0F;
    float total[kDims] = {};
#pragma unroll
    for (int w = 0; w < Tile::kWarps; ++w) {
      // A warp that saw no key adds nothing; its row_max of -inf would make a NaN.
      if (states.row_max[w][i] == -INFINITY && states.row_sum[w][i] == 0.0F) continue;
      const float weight = ptx::Ex2(states.row_max[w][i] - row_max);
      row_sum = fmaf(states.row_sum[w][i], weight, row_sum);
#pragma unroll
      for (int d = 0; d < kDims; ++d) {
        total[d] = fmaf(states.accumulator[w][i][lane * kDims + d], weight, total[d]);
      }
    }
    if (plan.num_splits > 1) {
      const std::int64_t row =
          plan.first_partial +
          (static_cast<std::int64_t>(task.split) * sequence.query_length + token) *
              params.attention.num_heads +
          head;
      float* const o = params.partial_o + row * params.attention.head_dim;
#pragma unroll
      for (int d = 0; d < kDims; ++d) {
        if (lane * kDims + d < params.attention.head_dim) o[lane * kDims + d] = total[d];
      }
      if (lane == 0) params.partial_state[row] = make_float2(row_max, row_sum);
      continue;
    }
    const RowResult result = FinishRow(row_max, row_sum, SinkLog2(params, sequence, head));
    const bool finite =
        StoreRow<Element>(params, sequence, token, head, lane * kDims, total, result.factor);
    if (!finite) FlagNonfinite(params, task.sequence, head);
    if (lane == 0 && sequence.lse != nullptr) {
      sequence.lse[static_cast<std::int64_t>(token) * params.attention.num_heads + head] =
          result.lse;
    }
  }
}

}  // namespace attnd::kernels::device
