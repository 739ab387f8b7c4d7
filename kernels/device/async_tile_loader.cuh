// Copies K, V and Q tiles into swizzled shared memory with cp.async.
#pragma once

#include <cstdint>

#include "kernels/device/attention_tile.cuh"
#include "kernels/device/kv_source.cuh"
#include "kernels/ptx/cp_async.cuh"

namespace attnd::kernels::device {

// kBlockKv rows by kWarps warps, each lane the same chunk of its rows. A warp copies whole groups of
// kGroupRows rows. A group that lies in one page costs one page table entry, so pages of kGroupRows
// tokens and more are as cheap as contiguous memory; smaller pages are looked up row by row.
//
// Addresses are prepared a tile ahead, away from the barrier: FetchEntries (the page table's latency)
// -> Prepare (arithmetic) -> Load (nothing but cp.async).
template <int kHeadDim, int kBlockKv, int kWarps>
class AsyncTileLoader {
 public:
  __device__ __forceinline__ AsyncTileLoader(const KvSource& source, int valid_chunks, int warp,
                                             int lane)
      : warp_(warp), sub_row_(lane / kLanesPerRow), chunk_(lane % kLanesPerRow) {
    chunk_is_valid_ = chunk_ < valid_chunks;
    single_rows_ = source.page_table != nullptr && source.page_mask + 1 < kGroupRows;
  }

  __device__ __forceinline__ void FetchEntries(const KvSource& source, int first_row) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) entries_[g] = source.Entry(first_row + GroupRow(g));
  }

  // FetchEntries(first_row) has been called.
  __device__ __forceinline__ void Prepare(const KvSource& source, int first_row) {
    first_row_ = first_row;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int row = first_row + GroupRow(g);
      rows_left_[g] = chunk_is_valid_ ? source.kv_length - row - sub_row_ : 0;
      if (source.page_table == nullptr) {
        k_[g] = source.k + (row + sub_row_) * source.k_row_bytes + chunk_ * kChunkBytes;
        v_[g] = source.v + (row + sub_row_) * source.v_row_bytes + chunk_ * kChunkBytes;
      } else if (!single_rows_) {
        if (!source.EntryIsValid(entries_[g])) rows_left_[g] = 0;
        const std::int64_t offset =
            entries_[g] * static_cast<std::int64_t>(kPageUnitBytes) +
            ((row & source.page_mask) + sub_row_) * static_cast<int>(source.k_row_bytes) +
            chunk_ * kChunkBytes;
        k_[g] = source.k + offset;
        v_[g] = source.v + offset;
      }
    }
  }

  // The prepared rows into k_tile and v_tile; rows past the end and chunks past the head dimension
  // become zeros.
  __device__ __forceinline__ void Load(std::uint32_t k_tile, std::uint32_t v_tile,
                                       const KvSource& source) const {
    using Layout = TileLayout<kHeadDim>;
    const int k_step = static_cast<int>(source.k_row_bytes) * kRowsPerPass;
    const int v_step = static_cast<int>(source.v_row_bytes) * kRowsPerPass;
    if (single_rows_) return LoadSingleRows(k_tile, v_tile, source);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int group = Layout::Offset(GroupRow(g) + sub_row_, chunk_);
      const char* k = k_[g];
      const char* v = v_[g];
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        const int row = pass * kRowsPerPass;
        const int bytes = row < rows_left_[g] ? kChunkBytes : 0;
        const int at = (group ^ ((row & 7) * kChunkBytes)) + row * Layout::kRowBytes;
        ptx::CpAsync16(k_tile + at, k + pass * static_cast<std::int64_t>(k_step), bytes);
        ptx::CpAsync16(v_tile + at, v + pass * static_cast<std::int64_t>(v_step), bytes);
      }
    }
  }

 private:
  static constexpr int kGroupRows = kBlockKv / kWarps < 16 ? kBlockKv / kWarps : 16;
  static constexpr int kGroups = kBlockKv / (kWarps * kGroupRows);
  static constexpr int kLanesPerRow =
      TileLayout<kHeadDim>::kChunks < 32 ? TileLayout<kHeadDim>::kChunks : 32;
  static constexpr int kRowsPerPass = 32 / kLanesPerRow;
  static constexpr int kPasses = kGroupRows / kRowsPerPass;
  static_assert(kGroups * kWarps * kGroupRows == kBlockKv);
  static_assert((kGroupRows & (kGroupRows - 1)) == 0, "rows of a pass XOR into the swizzle");

  __device__ __forceinline__ int GroupRow(int group) const {
    return (group * kWarps + warp_) * kGroupRows;
  }

  __device__ __forceinline__ void LoadSingleRows(std::uint32_t k_tile, std::uint32_t v_tile,
                                              const KvSource& source) const {
#pragma unroll 1
    for (int i = 0; i < kGroups * kPasses; ++i) {
      const int row = GroupRow(i / kPasses) + i % kPasses * kRowsPerPass + sub_row_;
      const std::uint32_t entry = source.Entry(first_row_ + row);
      const bool valid = chunk_is_valid_ && first_row_ + row < source.kv_length &&
                         source.EntryIsValid(entry);
      const std::int64_t offset =
          entry * static_cast<std::int64_t>(kPageUnitBytes) +
          ((first_row_ + row) & source.page_mask) * source.k_row_bytes + chunk_ * kChunkBytes;
      const int at = TileLayout<kHeadDim>::Offset(row, chunk_);
      ptx::CpAsync16(k_tile + at, source.k + (valid ? offset : 0), valid ? kChunkBytes : 0);
      ptx::CpAsync16(v_tile + at, source.v + (valid ? offset : 0), valid ? kChunkBytes : 0);
    }
  }

  int warp_, sub_row_, chunk_, first_row_;
  bool chunk_is_valid_, single_rows_;
  std::uint32_t entries_[kGroups];
  int rows_left_[kGroups];
  const char* k_[kGroups];
  const char* v_[kGroups];
};

// A warp's own kRows query rows; rows past `rows_left` become zeros.
template <int kHeadDim, int kRows>
__device__ __forceinline__ void LoadQueryRows(std::uint32_t tile, int first_tile_row,
                                              const char* first_row, std::int64_t row_bytes,
                                              int rows_left, int valid_chunks, int lane) {
  constexpr int kLanesPerRow = TileLayout<kHeadDim>::kChunks < 32 ? TileLayout<kHeadDim>::kChunks : 32;
  constexpr int kRowsPerPass = 32 / kLanesPerRow;
  const int sub_row = lane / kLanesPerRow;
  const int chunk = lane % kLanesPerRow;
  const char* from = first_row + sub_row * row_bytes + chunk * kChunkBytes;
#pragma unroll
  for (int step = 0; step < kRows; step += kRowsPerPass) {
    const bool valid = chunk < valid_chunks && step + sub_row < rows_left;
    ptx::CpAsync16(tile + TileLayout<kHeadDim>::Offset(first_tile_row + step + sub_row, chunk),
                   valid ? from + step * row_bytes : first_row, valid ? kChunkBytes : 0);
  }
}

}  // namespace attnd::kernels::device
