// The boundary between the decode driver (decode.cc, plain x86-64) and the SIMD targets: one call
// streams one range of keys of some KV heads for a block of query rows of each.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention_kernels.h"
#include "kernels/key_range.h"

namespace attnd::kernels {

// Keys of one tile. Tiles start at absolute multiples of this on the position axis, so that a key
// always meets the same neighbours, however the keys are split or chunked.
inline constexpr int kDecodeTileKeys = 64;

struct DecodeSegment {
  const AttentionParams* params;
  const AttentionSequence* sequence;
  int kv_head_begin, kv_head_end;
  // Rows [row_begin, row_end) of each of those heads: row r of KV head h is query token r / group
  // of query head h * group + r % group. All heads together at most kMaxDecodeRows rows; their
  // states follow each other, head by head.
  std::int64_t row_begin, row_end;
  KeyRange keys;

  int rows_per_head() const { return static_cast<int>(row_end - row_begin); }
};

// Working memory of one thread; the first three members are the result of a segment.
struct alignas(128) DecodeScratch {
  float row_max[kMaxDecodeRows];  // base 2: the rounded FP32 number max(s * c); -inf: no key
  float row_sum[kMaxDecodeRows];
  float accumulator[kMaxDecodeRows * kMaxHeadDim];  // [row][padded head_dim], not normalised
  alignas(128) std::byte q[kMaxDecodeRows * kMaxHeadDim * sizeof(float)];
  // Rows of contiguous K and V whose head_dim is no multiple of a line, padded with zeros.
  alignas(128) std::byte k_tile[kDecodeTileKeys * kMaxHeadDim * sizeof(float)];
  alignas(128) std::byte v_tile[kDecodeTileKeys * kMaxHeadDim * sizeof(float)];
};

using DecodeSegmentFunction = void (*)(const DecodeSegment& segment, DecodeScratch& scratch);

void DecodeSegmentAvx2(const DecodeSegment& segment, DecodeScratch& scratch);
void DecodeSegmentAvx512(const DecodeSegment& segment, DecodeScratch& scratch);
void DecodeSegmentAvx512Bf16(const DecodeSegment& segment, DecodeScratch& scratch);

}  // namespace attnd::kernels
