// The boundary between the decode driver (decode.cc, plain x86-64) and the SIMD targets: one call
// streams one range of keys of one KV head for a block of query rows.
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
  int kv_head;
  // Packed rows [row_begin, row_end), at most kMaxDecodeRows: packed row r is query token r / group
  // of head kv_head * group + r % group.
  std::int64_t row_begin, row_end;
  KeyRange keys;
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
