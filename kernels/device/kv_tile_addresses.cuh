// Where each lane's pieces of a K and V tile lie in device memory.
#pragma once

#include <cstdint>

#include "kernels/device/attention_tile.cuh"
#include "kernels/device/kv_source.cuh"
#include "kernels/ptx/ld_shared.cuh"

namespace attnd::kernels::device {

// kBlockKv rows by kWarps warps, each lane the same chunk of its rows. A warp copies whole groups
// of kGroupRows rows. A group that lies in one page costs one page table entry, so pages of
// kGroupRows tokens and more are as cheap as contiguous memory; smaller pages are looked up row by
// row.
//
// Addresses are prepared a tile ahead: FetchEntries (the page table's latency) -> Prepare
// (arithmetic), in ascending order of tiles, one after the other. Loaders derive from this class.
//
// kAdvance: rows from one tile to the next; more than kBlockKv where several loaders take turns.
template <int kHeadDim, int kBlockKv, int kWarps, int kAdvance = kBlockKv>
class KvTileAddresses {
 public:
  KvTileAddresses() = default;

  // `source` is complete. source_address: its shared memory address. The tile at first_row is
  // prepared.
  __device__ __forceinline__ KvTileAddresses(const KvSource& source, std::uint32_t source_address,
                                             int first_row, int valid_chunks, int warp, int lane)
      : source_address_(source_address),
        warp_(warp),
        sub_row_(lane / kLanesPerRow),
        chunk_(lane % kLanesPerRow) {
    mode_ = source.page_table == nullptr         ? kContiguous
            : source.page_mask + 1 >= kGroupRows ? kPages
                                                 : kSmallPages;
    chunk_is_valid_ = chunk_ < valid_chunks;
    FetchEntries(source, first_row);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const std::int64_t row = first_row + GroupRow(g) + sub_row_;
      rows_left_[g] = chunk_is_valid_ ? source.kv_length - static_cast<int>(row) : 0;
      k_[g] = source.k + row * source.k_row_bytes + chunk_ * kChunkBytes;
      v_[g] = source.v + row * source.v_row_bytes + chunk_ * kChunkBytes;
    }
    if (mode_ == kPages) LocatePages(source, first_row);
  }

  // Asks for the page table entries of the tile at first_row.
  __device__ __forceinline__ void FetchEntries(const KvSource& source, int first_row) {
    if (mode_ != kPages) return;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) entries_[g] = source.Entry(first_row + GroupRow(g));
  }

  // Moves on by one tile, to first_row, whose entries have been fetched.
  __device__ __forceinline__ void Prepare(const KvSource& source, int first_row) {
    const int2 row_bytes = ptx::LdShared64(source_address_);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      rows_left_[g] -= kAdvance;
      k_[g] += static_cast<std::int64_t>(row_bytes.x) * kAdvance;
      v_[g] += static_cast<std::int64_t>(row_bytes.y) * kAdvance;
    }
    if (mode_ == kPages) LocatePages(source, first_row);
  }

 protected:
  static constexpr int kGroupRows = kBlockKv / kWarps < 16 ? kBlockKv / kWarps : 16;
  static constexpr int kGroups = kBlockKv / (kWarps * kGroupRows);
  static constexpr int kLanesPerRow =
      TileLayout<kHeadDim>::kChunks < 32 ? TileLayout<kHeadDim>::kChunks : 32;
  static constexpr int kRowsPerPass = 32 / kLanesPerRow;
  static constexpr int kPasses = kGroupRows / kRowsPerPass;
  static_assert(kGroups * kWarps * kGroupRows == kBlockKv);
  static_assert((kGroupRows & (kGroupRows - 1)) == 0, "rows of a pass XOR into the swizzle");

  enum Mode : int { kContiguous, kPages, kSmallPages };

  __device__ __forceinline__ int GroupRow(int group) const {
    return (group * kWarps + warp_) * kGroupRows;
  }
  // Byte offset in a tile of this lane's piece in pass `pass` of group `group`.
  __device__ __forceinline__ int TileOffset(int group, int pass) const {
    const int row = pass * kRowsPerPass;
    const int start = TileLayout<kHeadDim>::Offset(GroupRow(group) + sub_row_, chunk_);
    return (start ^ ((row & 7) * kChunkBytes)) + row * TileLayout<kHeadDim>::kRowBytes;
  }
  // Row bytes of K and V times the rows between two passes.
  __device__ __forceinline__ int2 PassStep() const {
    const int2 row_bytes = ptx::LdShared64(source_address_);
    return {row_bytes.x * kRowsPerPass, row_bytes.y * kRowsPerPass};
  }
  // kSmallPages: the offset behind source.k and source.v of this lane's piece, negative where there
  // is none. first_row: of the tile.
  __device__ __forceinline__ std::int64_t SmallPageOffset(const KvSource& source, int first_row,
                                                          int group, int pass) const {
    const int row = first_row + GroupRow(group) + pass * kRowsPerPass + sub_row_;
    if (!chunk_is_valid_ || row >= source.kv_length) return -1;
    const std::uint32_t entry = source.Entry(row);
    if (!source.EntryIsValid(entry)) return -1;
    return entry * static_cast<std::int64_t>(kPageUnitBytes) +
           (row & source.page_mask) * source.k_row_bytes + chunk_ * kChunkBytes;
  }

  std::uint32_t source_address_;
  int mode_;
  int warp_, sub_row_, chunk_;
  bool chunk_is_valid_;
  std::uint32_t entries_[kGroups];
  int rows_left_[kGroups];  // from this lane's first row of the group to the end of the sequence
  const char* k_[kGroups];
  const char* v_[kGroups];

 private:
  __device__ __forceinline__ void LocatePages(const KvSource& source, int first_row) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const bool readable = chunk_is_valid_ && source.EntryIsValid(entries_[g]);
      rows_left_[g] = readable ? source.kv_length - first_row - GroupRow(g) - sub_row_ : 0;
      const int row = ((first_row + GroupRow(g)) & source.page_mask) + sub_row_;
      const std::int64_t offset = entries_[g] * static_cast<std::int64_t>(kPageUnitBytes) +
                                  row * source.k_row_bytes + chunk_ * kChunkBytes;
      k_[g] = source.k + offset;
      v_[g] = source.v + offset;
    }
  }
};

}  // namespace attnd::kernels::device
