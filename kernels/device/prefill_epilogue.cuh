// The end of a prefill tile: normalise, apply the sink, write o and lse, flag non-finite tiles.
#pragma once

#include <cstdint>

#include "kernels/attention_params.h"
#include "kernels/cuda/cuda_launch_params.h"
#include "kernels/device/attention_tile.cuh"
#include "kernels/device/online_softmax.cuh"
#include "kernels/device/score_options.cuh"

namespace attnd::kernels::device {

// Marks (row, head) of CudaLaunchParams::nonfinite_tiles and counts it once.
__device__ __forceinline__ void FlagNonfinite(const CudaLaunchParams& params, int row, int head) {
  const std::uint32_t bit = static_cast<std::uint32_t>(row) * params.attention.num_heads + head;
  const std::uint32_t mask = 1U << (bit % 32);
  if ((atomicOr(params.nonfinite_tiles + bit / 32, mask) & mask) == 0U) {
    atomicAdd(&params.status->nonfinite_tiles, 1U);
  }
}

// One query row's denominator and lse from its complete state.
struct RowResult {
  float factor;  // accumulator times this is o
  float lse;
};

// sink_log2: the sink logit times log2(e), -inf for none; a further key with no value.
__device__ __forceinline__ RowResult FinishRow(float row_max, float row_sum, float sink_log2) {
  float scale = 1.0F;
  if (sink_log2 != -INFINITY) {
    const float largest = fmaxf(row_max, sink_log2);
    scale = row_max == -INFINITY ? 0.0F : ptx::Ex2(row_max - largest);
    row_sum = row_sum * scale + ptx::Ex2(sink_log2 - largest);
    row_max = largest;
  }
  // No visible key: o is 0 and lse -inf. A NaN sum is not such a row: it goes on as NaN.
  if (row_sum == 0.0F) return {0.0F, -INFINITY};
  return {scale / row_sum, fmaf(row_max, kLn2, logf(row_sum))};
}

// Writes a warp's kFragments x 16 rows. `rows_left`: how many of them exist. `stage`: this warp's
// own rows of a swizzled tile, free to overwrite. with_sink: the kernel variant applies sinks. Sets
// the tile's bit where a stored o is not finite.
template <class Element, int kHeadDim, int kFragments>
__device__ __forceinline__ void StorePrefillRows(const CudaLaunchParams& params,
                                                 const AttentionSequence& sequence, int head,
                                                 int first_row,
                                                 float (&accumulator)[kFragments][kHeadDim / 8][4],
                                                 OnlineSoftmax<kFragments>& softmax, bool with_sink,
                                                 std::uint32_t* stage, int tile_index, int lane) {
  float sink_log2 = -INFINITY;
  if (with_sink && sequence.sink_logits != nullptr && !params.attention.partial) {
    sink_log2 = sequence.sink_logits[head] * kLog2E;
  }
  const int rows_left = sequence.query_length - first_row;
  const int group = lane >> 2;
  const int quad = lane & 3;
  float poison = 0.0F;  // 0 while every stored element is finite, else NaN
#pragma unroll
  for (int m = 0; m < kFragments; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = softmax.row_sum[m][r];
      sum += __shfl_xor_sync(0xffffffffU, sum, 1);
      sum += __shfl_xor_sync(0xffffffffU, sum, 2);
      const RowResult result = FinishRow(softmax.row_max[m][r], sum, sink_log2);
      const int row = 16 * m + 8 * r + group;
      const bool exists = row < rows_left;
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) {
          accumulator[m][n][e] *= result.factor;
          if (exists) poison = fmaf(accumulator[m][n][e], 0.0F, poison);
        }
      }
      if (exists && quad == 0 && sequence.lse != nullptr) {
        sequence
            .lse[static_cast<std::int64_t>(first_row + row) * params.attention.num_heads + head] =
            result.lse;
      }
    }
  }
  if (__any_sync(0xffffffffU, poison != 0.0F) && lane == 0) {
    FlagNonfinite(params, tile_index, head);
  }

  const int head_dim = params.attention.head_dim;
  const std::int64_t token_stride = sequence.o_token_stride;
  const std::int64_t origin = first_row * token_stride + head * sequence.o_head_stride;
  if (params.attention.partial) {
    float* o = static_cast<float*>(sequence.o) + origin;
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = 16 * m + 8 * r + group;
        if (row >= rows_left) continue;
#pragma unroll
        for (int n = 0; n < kHeadDim / 8; ++n) {
          const int dim = 8 * n + 2 * quad;
          float* at = o + row * token_stride + dim;
          if (dim < head_dim) at[0] = accumulator[m][n][2 * r];
          if (dim + 1 < head_dim) at[1] = accumulator[m][n][2 * r + 1];
        }
      }
    }
    return;
  }

  // Through shared memory, so that rows leave in 16-byte pieces.
  char* tile = reinterpret_cast<char*>(stage);
  __syncwarp();
#pragma unroll
  for (int m = 0; m < kFragments; ++m) {
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int at = TileLayout<kHeadDim>::Offset(16 * m + 8 * r + group, n) + 4 * quad;
        *reinterpret_cast<std::uint32_t*>(tile + at) =
            PackPair(accumulator[m][n][2 * r], accumulator[m][n][2 * r + 1], Element{});
      }
    }
  }
  __syncwarp();
  constexpr int kChunks = TileLayout<kHeadDim>::kChunks;
  const int valid_chunks = (head_dim + kChunkElements - 1) / kChunkElements;
  Element* o = static_cast<Element*>(sequence.o) + origin;
#pragma unroll 4
  for (int i = lane; i < kFragments * 16 * kChunks; i += 32) {
    const int row = i / kChunks;
    const int chunk = i % kChunks;
    if (row >= rows_left || chunk >= valid_chunks) continue;
    *reinterpret_cast<uint4*>(o + row * token_stride + chunk * kChunkElements) =
        *reinterpret_cast<const uint4*>(tile + TileLayout<kHeadDim>::Offset(row, chunk));
  }
}

}  // namespace attnd::kernels::device
