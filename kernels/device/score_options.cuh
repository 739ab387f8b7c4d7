// Options that change scores before the mask: soft cap, bias, ALiBi. Only the `all` variant of a
// kernel holds this code; as run-time branches in one kernel it costs registers that spill.
#pragma once

#include <cstdint>

#include "kernels/attention_params.h"
#include "kernels/cuda/cuda_launch_params.h"
#include "kernels/ptx/ex2.cuh"

namespace attnd::kernels::device {

inline constexpr float kLog2E = 1.44269504088896341F;
inline constexpr float kLn2 = 0.693147180559945309F;

// tanh to about 2^-22 everywhere. The hardware's approximation is off by 2^-11, which a cap of 50
// turns into 2.4 % of p.
__device__ __forceinline__ float Tanh(float x) {
  if (fabsf(x) < 0.3F) {  // the other form cancels here; the first dropped term is 2^-23 relative
    const float y = x * x;
    return x * fmaf(y,
                    fmaf(y, fmaf(y, fmaf(y, 0.0218694885F, -0.0539682540F), 0.133333333F),
                         -0.333333333F),
                    1.0F);
  }
  return 1.0F - 2.0F * __frcp_rn(ptx::Ex2(2.0F * kLog2E * x) + 1.0F);
}

struct ScoreOptions {
  float scale, soft_cap, slope;
  const float* bias;  // of this head, or null
  std::int64_t bias_row_stride;
  int diagonal;  // position of query row 0 minus position of key 0
  int query_length, kv_length;

  __device__ __forceinline__ ScoreOptions(const AttentionSequence& sequence, int head, float scale_)
      : scale(scale_),
        soft_cap(sequence.logits_soft_cap),
        slope(sequence.alibi_slopes == nullptr ? 0.0F : sequence.alibi_slopes[head]),
        bias(sequence.bias == nullptr ? nullptr : sequence.bias + head * sequence.bias_head_stride),
        bias_row_stride(sequence.bias_row_stride),
        diagonal(static_cast<int>(
            min(max(sequence.query_position - sequence.key_position, -kMaxDeviceTokens),
                kMaxDeviceTokens))),
        query_length(sequence.query_length),
        kv_length(static_cast<int>(sequence.kv_length)) {}

  // The logit, in natural units, of query row `row` and key `key` whose raw score is `score`.
  __device__ __forceinline__ float Logit(float score, int row, int key) const {
    float logit = score * scale;
    if (soft_cap > 0.0F) logit = soft_cap * Tanh(logit / soft_cap);
    if (bias != nullptr && row < query_length && key < kv_length) {
      logit += bias[row * bias_row_stride + key];
    }
    if (slope != 0.0F) logit -= slope * fabsf(static_cast<float>(diagonal + row - key));
    return logit;
  }
};

// Raw scores of a warp's fragments to logits.
template <int kFragments, int kTiles>
__device__ __forceinline__ void ApplyOptions(float (&s)[kFragments][kTiles][4],
                                             const ScoreOptions& options, int first_row,
                                             int first_key, int lane) {
#pragma unroll
  for (int m = 0; m < kFragments; ++m) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = first_row + 16 * m + 8 * (e / 2) + (lane >> 2);
        const int key = first_key + 8 * n + 2 * (lane & 3) + e % 2;
        s[m][n][e] = options.Logit(s[m][n][e], row, key);
      }
    }
  }
}

}  // namespace attnd::kernels::device
