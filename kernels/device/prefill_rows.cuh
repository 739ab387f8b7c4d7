// What every prefill kernel works out before its main loop: tile ranges, the score factor, and
// where the query operands come from.
#pragma once

#include <cstdint>

#include "kernels/attention_params.h"
#include "kernels/cuda/cuda_launch_params.h"
#include "kernels/device/attention_mask.cuh"
#include "kernels/device/attention_tile.cuh"
#include "kernels/device/score_options.cuh"

namespace attnd::kernels::device {

// Tells the compiler that a value is the same in all lanes, so that it may live in a uniform
// register.
__device__ __forceinline__ int Uniform(int value) { return __shfl_sync(0xffffffffU, value, 0); }

// Which tile and head a CTA of a grid of num_tasks x num_heads computes: in the order of
// PrefillPlan.
struct PrefillPlace {
  int task = blockIdx.x;
  int head = blockIdx.y;

  __device__ __forceinline__ explicit PrefillPlace(const CudaLaunchParams& params) {
    const int first_tail_head = params.attention.num_heads - params.tail_heads;
    if (head < first_tail_head) return;
    const unsigned in_tail = (head - first_tail_head) * params.num_tasks + task;
    const unsigned tail_heads = params.tail_heads;
    task = params.tail_order[in_tail / tail_heads];
    head = first_tail_head + static_cast<int>(in_tail % tail_heads);
  }
};

// KV tiles [first, end) hold a key that some row of the CTA sees. Of those, tiles outside
// [some_first, some_end) are hidden from all rows of this warp and skipped, and tiles in
// [full_first, full_end) are visible to all its rows and need no mask.
struct TileRanges {
  int first, end;
  int some_first, some_end, full_first, full_end;

  __device__ __forceinline__ TileRanges(const VisibleKeys& visible, int first_row, int block_rows,
                                        int warp_row, int warp_rows, int last_row, int block_kv) {
    const auto tiles = [block_kv](int keys) { return (keys + block_kv - 1) / block_kv; };
    first = visible.Lower(first_row) / block_kv;
    end = tiles(visible.Upper(min(first_row + block_rows - 1, last_row)));
    const int warp_last = min(warp_row + warp_rows - 1, last_row);
    some_first = Uniform(visible.Lower(warp_row) / block_kv);
    some_end = Uniform(warp_row <= last_row ? tiles(visible.Upper(warp_last)) : 0);
    full_first = Uniform(tiles(visible.Lower(warp_last)));
    full_end = Uniform(visible.Upper(warp_row) / block_kv);
  }
  __device__ __forceinline__ bool Skips(int tile) const {
    return tile < some_first || tile >= some_end;
  }
  __device__ __forceinline__ bool NeedsMask(int tile) const {
    return tile < full_first || tile >= full_end;
  }
};

// Base-2 factor of raw scores, always positive: a negative scale flips the sign of Q (exact), and
// scale 0, which gives every visible key weight 1, zeroes Q.
struct ScoreFactor {
  float c, query_factor;

  __device__ __forceinline__ explicit ScoreFactor(float softmax_scale) {
    c = fabsf(softmax_scale * kLog2E);
    query_factor = c == 0.0F ? 0.0F : (softmax_scale < 0.0F ? -1.0F : 1.0F);
    if (c == 0.0F) c = 1.0F;
  }
};

// A warp's query rows as A operands: held in registers, or read again for every tile where the
// accumulator leaves no room.
template <class Element, int kHeadDim, int kFragments, bool kInRegisters>
class QueryOperands {
 public:
  // rows: the warp's own rows of a swizzled tile, complete; they may be overwritten afterwards if
  // kInRegisters.
  __device__ __forceinline__ QueryOperands(std::uint16_t* rows, float query_factor, int lane)
      : rows_(static_cast<std::uint32_t>(__cvta_generic_to_shared(rows))), lane_(lane) {
    if (query_factor != 1.0F) {
      auto* pairs = reinterpret_cast<std::uint32_t*>(rows);
      for (int i = lane; i < kFragments * 16 * kHeadDim / 2; i += 32) {
        pairs[i] = ScalePair(pairs[i], query_factor, Element{});
      }
      __syncwarp();
    }
    if constexpr (kInRegisters) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
#pragma unroll
        for (int m = 0; m < kFragments; ++m) {
          LoadQueryFragment<kHeadDim>(held_[k][m], rows_, 16 * m, k, lane);
        }
      }
    }
  }
  // The operands of step `k` of the head dimension.
  __device__ __forceinline__ void operator()(int k, std::uint32_t (&q)[kFragments][4]) const {
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
      if constexpr (kInRegisters) {
#pragma unroll
        for (int i = 0; i < 4; ++i) q[m][i] = held_[k][m][i];
      } else {
        LoadQueryFragment<kHeadDim>(q[m], rows_, 16 * m, k, lane_);
      }
    }
  }

 private:
  static constexpr int kSteps = kHeadDim / 16;
  std::uint32_t rows_;
  int lane_;
  std::uint32_t held_[kInRegisters ? kSteps : 1][kFragments][4];
};

}  // namespace attnd::kernels::device
