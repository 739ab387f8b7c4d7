// Copies K, V and Q tiles into swizzled shared memory with cp.async.
#pragma once

#include <cstdint>

#include "kernels/device/kv_tile_addresses.cuh"
#include "kernels/ptx/cp_async.cuh"

namespace attnd::kernels::device {

template <int kHeadDim, int kBlockKv, int kWarps, int kAdvance = kBlockKv>
class AsyncTileLoader : public KvTileAddresses<kHeadDim, kBlockKv, kWarps, kAdvance> {
  using Base = KvTileAddresses<kHeadDim, kBlockKv, kWarps, kAdvance>;

 public:
  using Base::Base;

  // The prepared tile, which begins at first_row, into k_tile and v_tile; rows past the end and
  // chunks past the head dimension become zeros. The caller commits the group.
  __device__ __forceinline__ void Load(std::uint32_t k_tile, std::uint32_t v_tile,
                                       const KvSource& source, int first_row) const {
    LoadParts<kKeys | kValues>(k_tile, v_tile, source, first_row);
  }
  // One of the two; both of a tile before the next one is prepared.
  __device__ __forceinline__ void LoadKeys(std::uint32_t tile, const KvSource& source,
                                           int first_row) const {
    LoadParts<kKeys>(tile, 0, source, first_row);
  }
  __device__ __forceinline__ void LoadValues(std::uint32_t tile, const KvSource& source,
                                             int first_row) const {
    LoadParts<kValues>(0, tile, source, first_row);
  }

 private:
  enum Parts : int { kKeys = 1, kValues = 2 };

  template <int kParts>
  __device__ __forceinline__ void LoadParts(std::uint32_t k_tile, std::uint32_t v_tile,
                                            const KvSource& source, int first_row) const {
    if (this->mode_ == Base::kSmallPages) {
      return LoadSmallPages<kParts>(k_tile, v_tile, source, first_row);
    }
    const int2 step = this->PassStep();
#pragma unroll
    for (int g = 0; g < Base::kGroups; ++g) {
#pragma unroll
      for (int pass = 0; pass < Base::kPasses; ++pass) {
        const int bytes = pass * Base::kRowsPerPass < this->rows_left_[g] ? kChunkBytes : 0;
        const int at = this->TileOffset(g, pass);
        if constexpr ((kParts & kKeys) != 0) {
          ptx::CpAsync16(k_tile + at, this->k_[g] + pass * static_cast<std::int64_t>(step.x),
                         bytes);
        }
        if constexpr ((kParts & kValues) != 0) {
          ptx::CpAsync16(v_tile + at, this->v_[g] + pass * static_cast<std::int64_t>(step.y),
                         bytes);
        }
      }
    }
  }

  template <int kParts>
  __device__ __forceinline__ void LoadSmallPages(std::uint32_t k_tile, std::uint32_t v_tile,
                                                 const KvSource& source, int first_row) const {
#pragma unroll 1
    for (int i = 0; i < Base::kGroups * Base::kPasses; ++i) {
      const int group = i / Base::kPasses;
      const int pass = i % Base::kPasses;
      const std::int64_t offset = this->SmallPageOffset(source, first_row, group, pass);
      const int at = this->TileOffset(group, pass);
      const int bytes = offset < 0 ? 0 : kChunkBytes;
      if constexpr ((kParts & kKeys) != 0) {
        ptx::CpAsync16(k_tile + at, source.k + max(offset, std::int64_t{0}), bytes);
      }
      if constexpr ((kParts & kValues) != 0) {
        ptx::CpAsync16(v_tile + at, source.v + max(offset, std::int64_t{0}), bytes);
      }
    }
  }
};

// A warp's own kRows query rows; rows past `rows_left` become zeros.
template <int kHeadDim, int kRows>
__device__ __forceinline__ void LoadQueryRows(std::uint32_t tile, int first_tile_row,
                                              const char* first_row, std::int64_t row_bytes,
                                              int rows_left, int valid_chunks, int lane) {
  constexpr int kLanesPerRow =
      TileLayout<kHeadDim>::kChunks < 32 ? TileLayout<kHeadDim>::kChunks : 32;
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
