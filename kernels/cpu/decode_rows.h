// How the decode targets walk memory: the rows of a tile, what is prefetched into the second-level
// cache while others are computed, and what is touched on its way into the first. Part of
// decode_<target>.cc (decode_tile.h). Figures: docs/kernels/cpu_decode.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/cpu/decode_segment.h"
#include "kernels/cpu/simd_math.h"

namespace attnd::kernels {
namespace {

// Calls f(constant 0), ..., f(constant kCount - 1), unrolled: arrays of vectors indexed by the
// argument stay in registers.
template <int kCount, class F>
HWY_INLINE void Unroll(F&& f) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) HWY_ATTR {
    (f(std::integral_constant<int, kIndex>{}), ...);
  }
  (std::make_integer_sequence<int, kCount>{});
}

// The rows of one tile, of the first KV head of a segment. Lanes outside [first, last) repeat the
// nearest row inside, so that a row address is always readable.
struct TileRows {
  int first = 0, last = 0;  // lanes that hold keys of this segment
  const std::byte* k[kDecodeTileKeys];
  const std::byte* v[kDecodeTileKeys];
};

// The same tile of one KV head.
struct TileView {
  const TileRows* rows;
  std::int64_t k_offset, v_offset;  // bytes from the first head's rows
  int first() const { return rows->first; }
  int last() const { return rows->last; }
  const std::byte* Key(int lane) const { return rows->k[lane] + k_offset; }
  const std::byte* Value(int lane) const { return rows->v[lane] + v_offset; }
};

// Into the second-level cache: fills of the first level are too few to cover memory's latency (half
// the bandwidth, measured). Written in assembly because GCC deletes loops that only prefetch.
HWY_INLINE void PrefetchRow(const std::byte* row, int bytes) {
  for (int offset = 0; offset < bytes; offset += 64) {
    __asm__ volatile("prefetcht1 %0" : : "m"(row[offset]));
  }
}

// Loads one word of every line, in ascending order. The arithmetic reads a block in another order
// (4 rows side by side, or part of every row), which no hardware prefetcher follows; after this
// pass it reads the first-level cache. Worth 10 % of the bandwidth.
HWY_INLINE void TouchRow(const std::byte* row, int bytes) {
  for (int offset = 0; offset < bytes; offset += 64) {
    long word;
    __asm__ volatile("movq %1, %0" : "=r"(word) : "m"(row[offset]));
  }
}

// Keys of a tile that are worked on at a time, all their dims before the next keys: 4 KiB of rows,
// which stay in the first-level cache from one pass over some dims to the next. A power of two.
constexpr int BlockKeys(int row_bytes) {
  int keys = 8;
  while (keys < kDecodeTileKeys && 2 * keys * row_bytes <= 4096) keys *= 2;
  return keys;
}

// Touches the rows [begin, end) of a tile.
HWY_INLINE void TouchKeys(const TileView& tile, int begin, int end, int row_bytes) {
  for (int lane = begin; lane < end; ++lane) TouchRow(tile.Key(lane), row_bytes);
}
HWY_INLINE void TouchValues(const TileView& tile, int begin, int end, int row_bytes) {
  for (int lane = begin; lane < end; ++lane) TouchRow(tile.Value(lane), row_bytes);
}

// What to prefetch: without a next tile the rows at hand, which costs nothing but the instruction.
inline const TileView& Ahead(const TileView* next, const TileView& tile) {
  return next != nullptr ? *next : tile;
}

struct KeyBlock {
  int begin;        // multiple of the block's size
  int first, last;  // its lanes that hold keys
};

// Rows that are prefetched while others are computed, as many bytes as the arithmetic reads, but in
// ascending order whatever order that reads in: whole rows, one after the other.
class RowPrefetch {
 public:
  // From the row of `lane` on.
  static RowPrefetch Keys(const TileView& tile, int lane, int row_bytes) {
    return RowPrefetch(tile.rows->k + lane, tile.k_offset, row_bytes);
  }
  static RowPrefetch Values(const TileView& tile, int lane, int row_bytes) {
    return RowPrefetch(tile.rows->v + lane, tile.v_offset, row_bytes);
  }

  // The next kCount lines; or, in rows of another number of lines, whole rows as they fall due.
  template <int kCount>
  HWY_INLINE void Lines() {
    if (row_bytes_ % (kCount * 64) != 0) return WholeRows(kCount * 64);
    const std::byte* line = *rows_ + offset_ + done_bytes_;
    Unroll<kCount>([&](auto i) HWY_ATTR { PrefetchRow(line + i * 64, 64); });
    done_bytes_ += kCount * 64;
    if (done_bytes_ < row_bytes_) return;
    done_bytes_ = 0;
    ++rows_;
  }
  void WholeRows(int due_bytes) {
    done_bytes_ += due_bytes;
    while (done_bytes_ >= row_bytes_) {
      done_bytes_ -= row_bytes_;
      PrefetchRow(*rows_++ + offset_, row_bytes_);
    }
  }

 private:
  RowPrefetch(const std::byte* const* rows, std::int64_t offset, int row_bytes)
      : rows_(rows), offset_(offset), row_bytes_(row_bytes) {}

  const std::byte* const* rows_;
  std::int64_t offset_;
  int row_bytes_;
  int done_bytes_ = 0;  // of this row; in WholeRows: due
};

// What the first pass over a tile's values leaves of each row for later passes, into the
// first-level cache on its way: rows read in parts arrive 5 to 10 % slower. For targets that wait
// for arithmetic and work on whole tiles.
HWY_INLINE void PrefetchRestOfRow(const std::byte* row, int done_bytes, int row_bytes) {
  for (int offset = done_bytes; offset < row_bytes; offset += 64) {
    __asm__ volatile("prefetcht0 %0" : : "m"(row[offset]));
  }
}

}  // namespace
}  // namespace attnd::kernels
