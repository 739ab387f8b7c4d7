// The last step of one query row: sink, normalisation, conversion, lse, and the exact row where the
// result is not finite. Shared by the decode and naive rows.
#pragma once

#include <cstdint>

#include "kernels/attention_params.h"

namespace attnd::kernels {

// Unnormalised state of a row over all its keys.
struct RowResult {
  const float* accumulator;  // [head_dim]
  double row_max;            // base 2: max(s * log2 e); -inf: no visible key
  double row_sum;            // of 2^(s * log2 e - row_max)
};

// Writes o, and lse where wanted, of query row `token` of `head`. True: an element was not finite
// and the exact row has written both instead.
bool FinishRow(const AttentionParams& params, int sequence, int head, std::int64_t token,
               RowResult result);

}  // namespace attnd::kernels
