// Online softmax over score fragments: base 2, one running (row_max, row_sum) per query row.
//
// row_max is the rounded FP32 number max(s * c) with c = log2(e) * scale; p, the rescale factors
// and lse all use that same number, so its rounding cancels. It is raised only when a tile exceeds
// it by more than kLazyRescale: p then stays below 2^kLazyRescale, far inside FP16, and the
// accumulator is left alone in nearly every tile. The decision is per row; the vote only skips a
// product with 1.
#pragma once

#include "kernels/ptx/ex2.cuh"

namespace attnd::kernels::device {

inline constexpr float kLazyRescale = 8.0F;
// From here on the spacing of FP32 numbers is 1 or more and fma(s, c, -row_max), whose product is
// not rounded, no longer cancels against the rounded row_max.
inline constexpr float kExactProductFrom = 8388608.0F;  // 2^23

// State of the kRows = 2 * kFragments query rows that a lane shares with its quad.
template <int kFragments>
struct OnlineSoftmax {
  float row_max[kFragments][2];
  float row_sum[kFragments][2];  // this lane's columns only; the quad is summed at the end
  bool rounded_product = false;  // the same in all lanes of a warp

  __device__ __forceinline__ OnlineSoftmax() {
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        row_max[m][r] = -INFINITY;
        row_sum[m][r] = 0.0F;
      }
    }
  }

  // A row that has seen no key has row_max -inf; (-inf) - (-inf) would be NaN.
  __device__ __forceinline__ float Base(int m, int r) const {
    return row_max[m][r] == -INFINITY ? 0.0F : row_max[m][r];
  }

  // scores: [kFragments][kTiles][4] raw scores of one tile, replaced by p = 2^(s * c - row_max).
  // accumulator: [kFragments][kColumns][4], rescaled where row_max was raised.
  template <int kTiles, int kColumns>
  __device__ __forceinline__ void Step(float (&scores)[kFragments][kTiles][4],
                                       float (&accumulator)[kFragments][kColumns][4], float c) {
    float tile_max[kFragments][2];
    bool raise = false;
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float largest = fmaxf(scores[m][0][2 * r], scores[m][0][2 * r + 1]);
#pragma unroll
        for (int n = 1; n < kTiles; ++n) {
          largest = fmaxf(largest, fmaxf(scores[m][n][2 * r], scores[m][n][2 * r + 1]));
        }
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, 2));
        tile_max[m][r] = largest * c;
        raise |= tile_max[m][r] > row_max[m][r] + kLazyRescale;
      }
    }
    // One rarely taken branch: what follows it can overlap with the mma around it.
    if (__builtin_expect(__any_sync(0xffffffffU, raise || rounded_product), 0)) {
      Raise(tile_max, accumulator);
      if (rounded_product) {
        // Where row_max is large the products are rounded first, as row_max was; then c is spent.
#pragma unroll
        for (int m = 0; m < kFragments; ++m) {
#pragma unroll
          for (int n = 0; n < kTiles; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) scores[m][n][e] = __fmul_rn(scores[m][n][e], c);
          }
        }
        c = 1.0F;
      }
    }
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
      const float base[2] = {Base(m, 0), Base(m, 1)};
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          scores[m][n][e] = ptx::Ex2(fmaf(scores[m][n][e], c, -base[e / 2]));
        }
        row_sum[m][0] += scores[m][n][0] + scores[m][n][1];
        row_sum[m][1] += scores[m][n][2] + scores[m][n][3];
      }
    }
  }

 private:
  template <int kColumns>
  __device__ __forceinline__ void Raise(const float (&tile_max)[kFragments][2],
                                        float (&accumulator)[kFragments][kColumns][4]) {
    bool large = false;
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float factor = 1.0F;
        if (tile_max[m][r] > row_max[m][r] + kLazyRescale) {
          // From -inf the factor is 0 and multiplies an accumulator that is still 0.
          factor = ptx::Ex2(row_max[m][r] - tile_max[m][r]);
          row_max[m][r] = tile_max[m][r];
        }
        large |= fabsf(row_max[m][r]) >= kExactProductFrom && row_max[m][r] != -INFINITY;
        row_sum[m][r] *= factor;
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
          accumulator[m][n][2 * r] *= factor;
          accumulator[m][n][2 * r + 1] *= factor;
        }
      }
    }
    rounded_product = __any_sync(0xffffffffU, large);
  }
};

}  // namespace attnd::kernels::device
