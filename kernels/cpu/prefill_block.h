// The boundary inside the CPU prefill: the portable driver (prefill.cc) cuts a batch into blocks
// and hands each to the SIMD code of one target. Plain structs only: the files on the other side
// are compiled with target flags, so they must not instantiate an inline function or template that
// another file shares (the linker would keep one copy for both).
//
// Rows  The query heads of a group read the same keys, so they are packed into one list of rows
//       per KV head, query-major: row r is query r / group of head kv_head * group + r % group.
//       Neither end of the visible key range ever moves left along the list.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention_params.h"
#include "kernels/key_range.h"

namespace attnd::kernels {

// Tiles of one block at most; each has one bit in RunBlock's answer.
inline constexpr int kMaxBlockTiles = 8;

// K and V rows of one KV head: row t starts at k + t * k_stride, or in a page.
struct KvAddress {
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  std::int64_t k_stride_bytes = 0, v_stride_bytes = 0;
  const std::uint32_t* page_table = nullptr;  // null: contiguous
  int page_shift = 0;
};

// Rows [row_begin, row_begin + num_rows) of one KV head of one sequence.
struct PrefillBlock {
  const AttentionSequence* sequence = nullptr;
  std::int32_t kv_head = 0;
  std::int64_t row_begin = 0;
  std::int32_t num_rows = 0;
  KvAddress kv;
  const KeyRange* visible = nullptr;  // [num_rows]
};

// The SIMD code of one target.
struct PrefillTarget {
  int tile_rows;                                // rows of one tile
  std::uint32_t data_types;                     // TypeBit mask
  std::int64_t (*scratch_bytes)(int head_dim);  // of one thread, a multiple of 128
  // Computes o and lse of the block's rows. Bit t of the answer: tile t holds a non-finite o.
  std::uint32_t (*run_block)(const AttentionParams& params, const PrefillBlock& block,
                             std::byte* scratch);
};

extern const PrefillTarget kPrefillAvx2;
extern const PrefillTarget kPrefillAvx512;
extern const PrefillTarget kPrefillAvx512Bf16;

}  // namespace attnd::kernels
