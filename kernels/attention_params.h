// Plain structs shared by every attention kernel, on the host and on a device. No ownership:
// whoever launches keeps all memory alive until the launch has completed.
//
// Glossary (the paper's letters, used in every kernel file)
//   q, k, v, o       query, key, value, output tensors: q[token][head][dim], k[token][kv_head][dim]
//   s, p             scores (after scale, cap, bias) and unnormalised probabilities
//   row_max          running maximum of s * log2(e) per query row; row_sum the running sum of 2^(s
//   * log2(e) - row_max) accumulator      running sum of p * v per query row, FP32 lse natural log
//   of the sum of exp(s) over visible keys (and the sink): [token][head], FP32 group num_heads /
//   num_kv_heads; query head h reads KV head h / group split            one of several disjoint KV
//   ranges of a sequence, computed apart and merged by (row_max, row_sum)
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace attnd::kernels {

enum class DataType : std::uint8_t { kFp32, kFp16, kBf16, kInt8, kFp8E4m3 };

constexpr int ElementBytes(DataType type) {
  switch (type) {
    case DataType::kFp32:
      return 4;
    case DataType::kFp16:
    case DataType::kBf16:
      return 2;
    case DataType::kInt8:
    case DataType::kFp8E4m3:
      return 1;
  }
  return 0;
}

inline constexpr int kMaxHeadDim = 256;
inline constexpr std::int64_t kUnlimitedWindow = -1;

// How one page of the cache lies in memory. K first, then V, each
// k[kv_head][token][padded_head_dim]: one (page, head) is one contiguous block. Rows are padded
// with zeros from head_dim to padded_head_dim.
struct PageLayout {
  DataType data_type = DataType::kFp32;
  std::int32_t page_tokens = 16;  // a power of two, 1 to 256
  std::int32_t num_kv_heads = 1;
  std::int32_t head_dim = 1;
  std::int32_t padded_head_dim = 32;  // PaddedHeadDim(head_dim)

  std::int64_t head_block_bytes() const {
    return std::int64_t{page_tokens} * padded_head_dim * ElementBytes(data_type);
  }
  std::int64_t v_offset_bytes() const { return num_kv_heads * head_block_bytes(); }
  // A multiple of kPageUnitBytes, so that a page table entry is an offset in such units.
  std::int64_t page_bytes() const;
};

// A page table entry times kPageUnitBytes is the page's byte offset in the pool.
inline constexpr std::int64_t kPageUnitBytes = 128;
inline constexpr std::uint32_t kInvalidPage = std::numeric_limits<std::uint32_t>::max();

// Rows of the cache are whole 64-byte lines in every 16-bit and 32-bit type.
constexpr std::int32_t PaddedHeadDim(std::int32_t head_dim) { return (head_dim + 31) / 32 * 32; }

inline std::int64_t PageLayout::page_bytes() const {
  const std::int64_t bytes = 2 * v_offset_bytes();
  return (bytes + kPageUnitBytes - 1) / kPageUnitBytes * kPageUnitBytes;
}

// Where a sequence's keys and values are. Exactly one of `page_table` and `k`/`v` is set (both
// absent: kv_length is 0).
struct KvView {
  // Contiguous: element (token, kv_head, dim) at token * token_stride + kv_head * head_stride + dim
  // (strides in elements).
  const void* k = nullptr;
  const void* v = nullptr;
  std::int64_t k_token_stride = 0, k_head_stride = 0;
  std::int64_t v_token_stride = 0, v_head_stride = 0;
  // Paged: token t is row t % page_tokens of page page_table[t / page_tokens]; layout in
  // AttentionParams::page_layout. Entries past the last page that holds a token are never read.
  const std::uint32_t* page_table = nullptr;
};

// One sequence of a ragged batch. Query row i stands at position query_position + i and key j at
// key_position + j on one axis; masks, windows and ALiBi are functions of those positions only.
// Bottom-right alignment is key_position = 0, query_position = kv_length - query_length.
struct AttentionSequence {
  const void* q = nullptr;  // q[query_length][num_heads][head_dim]; strides in elements
  std::int64_t q_token_stride = 0, q_head_stride = 0;
  void* o = nullptr;  // o[query_length][num_heads][head_dim] in data_type, FP32 when partial
  std::int64_t o_token_stride = 0, o_head_stride = 0;
  float* lse = nullptr;  // lse[query_length][num_heads], contiguous; null: not wanted

  KvView kv;
  std::int32_t query_length = 0;
  std::int64_t kv_length = 0;
  std::int64_t query_position = 0;
  std::int64_t key_position = 0;

  bool causal = false;
  std::int64_t window_left =
      kUnlimitedWindow;  // keys at positions below p - window_left are hidden
  std::int64_t window_right =
      kUnlimitedWindow;          // keys above p + window_right are hidden; ignored when causal
  float softmax_scale = 1.0F;    // finite; may be zero or negative
  float logits_soft_cap = 0.0F;  // 0: off
  const float* alibi_slopes = nullptr;  // [num_heads] or null
  const float* sink_logits = nullptr;   // [num_heads] or null; not applied when partial
  const float* bias = nullptr;  // FP32 bias[head][query][key]: element (h, i, j) at h*head_stride +
                                // i*row_stride + j
  std::int64_t bias_head_stride = 0, bias_row_stride = 0;  // head stride 0: one bias for all heads
};

// One launch: every sequence shares head shape and types; option values differ freely.
struct AttentionParams {
  DataType data_type = DataType::kFp32;     // q, and o unless partial
  DataType kv_data_type = DataType::kFp32;  // k and v
  std::int32_t num_heads = 1;
  std::int32_t num_kv_heads = 1;  // divides num_heads
  std::int32_t head_dim = 1;      // 1 to kMaxHeadDim
  bool partial = false;           // o in FP32, sinks left out
  const AttentionSequence* sequences = nullptr;
  std::int32_t num_sequences = 0;
  // Paged sequences only. Page entries are compared with pool_bytes; one that lies outside fails
  // the launch, nothing is read.
  PageLayout page_layout;
  const std::byte* pool = nullptr;
  std::int64_t pool_bytes = 0;
};

// Rotary embedding applied to q (in a copy) and to k before it is stored. Angles are reduced in
// double.
struct RopeParams {
  bool enabled = false;
  double theta = 10000.0;
  std::int32_t rotary_dim = 0;  // even, 2 to head_dim
  bool interleaved = false;     // pairs (2i, 2i+1); otherwise (i, i + rotary_dim / 2)
  double position_scale = 1.0;  // angle = position * position_scale * inverse_frequency
  double amplitude = 1.0;       // multiplies sine and cosine
  const float* inverse_frequencies = nullptr;  // [rotary_dim / 2], replaces theta; or null
};

// Rows of new K and V written into pages: token i of the source becomes token first_token + i of
// the page table.
struct AppendSequence {
  const void* k = nullptr;  // k[num_tokens][num_kv_heads][head_dim], contiguous
  const void* v = nullptr;
  std::int32_t num_tokens = 0;
  std::int64_t first_token = 0;     // row index in the page table's own numbering
  std::int64_t first_position = 0;  // of token 0 on the sequence's axis, for RoPE
  const std::uint32_t* page_table = nullptr;
  RopeParams rope;
};

}  // namespace attnd::kernels
