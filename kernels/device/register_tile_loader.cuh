// Copies K, V and Q tiles into swizzled shared memory through registers: for architectures without
// cp.async.
#pragma once

#include <cstdint>

#include "kernels/device/kv_tile_addresses.cuh"

namespace attnd::kernels::device {

// Fetch starts the loads of a tile into a buffer of registers, Store waits for them. The buffer is
// the caller's: one that K and V use in turn, or one each.
template <int kHeadDim, int kBlockKv, int kWarps, int kAdvance = kBlockKv>
class RegisterTileLoader : public KvTileAddresses<kHeadDim, kBlockKv, kWarps, kAdvance> {
  using Base = KvTileAddresses<kHeadDim, kBlockKv, kWarps, kAdvance>;

 public:
  using Base::Base;
  using Buffer = uint4[Base::kGroups][Base::kPasses];

  // Pieces of the prepared tile, which begins at first_row, into the buffer; rows past the end and
  // chunks past the head dimension become zeros.
  __device__ __forceinline__ void FetchK(const KvSource& source, int first_row,
                                         Buffer& buffer) const {
    Fetch(buffer, source, source.k, this->k_, this->PassStep().x, first_row);
  }
  // The same for the first tile, while `source` is not yet in shared memory.
  __device__ __forceinline__ void FetchFirstK(const KvSource& source, int first_row,
                                              Buffer& buffer) const {
    Fetch(buffer, source, source.k, this->k_, source.k_row_bytes * Base::kRowsPerPass, first_row);
  }
  __device__ __forceinline__ void FetchV(const KvSource& source, int first_row,
                                         Buffer& buffer) const {
    Fetch(buffer, source, source.v, this->v_, this->PassStep().y, first_row);
  }
  __device__ __forceinline__ void Store(char* tile, const Buffer& buffer) const {
#pragma unroll
    for (int g = 0; g < Base::kGroups; ++g) {
#pragma unroll
      for (int pass = 0; pass < Base::kPasses; ++pass) {
        *reinterpret_cast<uint4*>(tile + this->TileOffset(g, pass)) = buffer[g][pass];
      }
    }
  }

 private:
  __device__ __forceinline__ void Fetch(Buffer& buffer, const KvSource& source, const char* base,
                                        const char* const (&from)[Base::kGroups], int step,
                                        int first_row) const {
    if (this->mode_ == Base::kSmallPages) {
#pragma unroll
      for (int g = 0; g < Base::kGroups; ++g) {
#pragma unroll
        for (int pass = 0; pass < Base::kPasses; ++pass) {
          const std::int64_t offset = this->SmallPageOffset(source, first_row, g, pass);
          buffer[g][pass] = Load(base + offset, offset >= 0);
        }
      }
      return;
    }
#pragma unroll
    for (int g = 0; g < Base::kGroups; ++g) {
#pragma unroll
      for (int pass = 0; pass < Base::kPasses; ++pass) {
        buffer[g][pass] = Load(from[g] + pass * static_cast<std::int64_t>(step),
                               pass * Base::kRowsPerPass < this->rows_left_[g]);
      }
    }
  }
  __device__ __forceinline__ static uint4 Load(const char* from, bool exists) {
    return exists ? __ldg(reinterpret_cast<const uint4*>(from)) : make_uint4(0, 0, 0, 0);
  }
};

// A warp's own kRows query rows into a tile at first_tile_row; rows past `rows_left` become zeros.
template <int kHeadDim, int kRows>
__device__ __forceinline__ void CopyQueryRows(char* tile, const char* first_row,
                                              std::int64_t row_bytes, int rows_left,
                                              int valid_chunks, int lane) {
  constexpr int kChunks = TileLayout<kHeadDim>::kChunks;
  constexpr int kPieces = kRows * kChunks / 32;  // of a lane
  static_assert(kPieces * 32 == kRows * kChunks);
  uint4 pieces[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {  // all in flight: one latency, not one every few pieces
    const int row = (i * 32 + lane) / kChunks;
    const int chunk = (i * 32 + lane) % kChunks;
    const bool exists = row < rows_left && chunk < valid_chunks;
    pieces[i] = exists ? __ldg(reinterpret_cast<const uint4*>(first_row + row * row_bytes +
                                                              chunk * kChunkBytes))
                       : make_uint4(0, 0, 0, 0);
  }
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int row = (i * 32 + lane) / kChunks;
    const int chunk = (i * 32 + lane) % kChunks;
    *reinterpret_cast<uint4*>(tile + TileLayout<kHeadDim>::Offset(row, chunk)) = pieces[i];
  }
}

}  // namespace attnd::kernels::device
