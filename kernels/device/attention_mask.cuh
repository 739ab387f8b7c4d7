// Which keys a query row sees: causal, windows and the end of the sequence are one interval.
#pragma once

#include <cstdint>

#include "kernels/attention_params.h"
#include "kernels/cuda/cuda_launch_params.h"

namespace attnd::kernels::device {

// Query row i (index in its sequence) sees the keys j with Lower(i) <= j < Upper(i). Both ends
// never fall as i grows, so a tile of rows sees [Lower(first), Upper(last)), and all its rows see
// [Lower(last), Upper(first)).
struct VisibleKeys {
  int lower_offset, upper_offset, kv_length;

  __device__ __forceinline__ explicit VisibleKeys(const AttentionSequence& sequence)
      : kv_length(static_cast<int>(sequence.kv_length)) {
    const std::int64_t diagonal = sequence.query_position - sequence.key_position;
    const std::int64_t right = sequence.causal ? 0 : sequence.window_right;
    lower_offset = sequence.window_left < 0 ? -Limit() : Cut(diagonal - sequence.window_left);
    upper_offset = right < 0 ? Limit() : Cut(diagonal + right + 1);
  }
  __device__ __forceinline__ int Lower(int row) const {
    return min(max(row + lower_offset, 0), kv_length);
  }
  __device__ __forceinline__ int Upper(int row) const {
    return min(max(row + upper_offset, 0), kv_length);
  }

 private:
  __device__ __forceinline__ static int Limit() { return static_cast<int>(kMaxDeviceTokens); }
  __device__ __forceinline__ static int Cut(std::int64_t offset) {
    return static_cast<int>(min(max(offset, -kMaxDeviceTokens), kMaxDeviceTokens));
  }
};

// Hides what the rows of a warp's score fragments do not see: by selection, never arithmetic, so
// that a NaN in a hidden score is gone too. first_row, first_key: of the fragments' first element.
template <int kFragments, int kTiles>
__device__ __forceinline__ void MaskTile(float (&s)[kFragments][kTiles][4],
                                         const VisibleKeys& visible, int first_row, int first_key,
                                         int lane) {
  const int lane_key = first_key + 2 * (lane & 3);
#pragma unroll
  for (int m = 0; m < kFragments; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first_row + 16 * m + 8 * r + (lane >> 2);
      const int from = visible.Lower(row) - lane_key;
      const int to = visible.Upper(row) - lane_key;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int key = 8 * n + e;
          float& score = s[m][n][2 * r + e];
          score = (key >= from && key < to) ? score : -INFINITY;
        }
      }
    }
  }
}

}  // namespace attnd::kernels::device
