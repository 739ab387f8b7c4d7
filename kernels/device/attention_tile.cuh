// One warp's share of a tile: S = Q K^T and O += P V on m16n8 fragments, operands from swizzled
// shared memory.
//
// Swizzle  A row is kHeadDim 16-bit elements in chunks of 16 bytes; chunk c of row r is stored at
//          chunk c ^ (r & 7). The eight rows that one ldmatrix phase reads at the same chunk then
//          lie in eight different bank groups, and so do the eight chunks that a quarter-warp
//          writes: no bank conflict either way.
// Arch     sm75::Arch or sm80::Arch: how a 16x8x16 product is made of the architecture's mma.
#pragma once

#include <cstdint>

#include "kernels/device/element.cuh"
#include "kernels/ptx/ldmatrix.cuh"

namespace attnd::kernels::device {

inline constexpr int kChunkBytes = 16;
inline constexpr int kChunkElements = 8;

template <int kHeadDim>
struct TileLayout {
  static constexpr int kRowBytes = kHeadDim * 2;
  static constexpr int kChunks = kHeadDim / kChunkElements;
  static_assert(kChunks % 8 == 0, "the swizzle permutes groups of eight chunks");

  __device__ __forceinline__ static int Offset(int row, int chunk) {
    return row * kRowBytes + ((chunk ^ (row & 7)) * kChunkBytes);
  }

  // The address `chunks` further in the row that holds `address`, given that the bits of `chunks`
  // are clear in the address's logical chunk and that tiles are aligned to 128 bytes: one XOR and an
  // immediate where `chunks` is known to the compiler.
  __device__ __forceinline__ static std::uint32_t Advance(std::uint32_t address, int chunks) {
    return (address ^ ((chunks & 7) * kChunkBytes)) + (chunks & ~7) * kChunkBytes;
  }
};

// Lanes read rows first_row + (lane % 16) at chunk pair element lane / 16: the A operand, and the
// transposed B operand of PV.
struct LaneRowMajor {
  int row, chunk;
  __device__ __forceinline__ explicit LaneRowMajor(int lane) : row(lane & 15), chunk(lane >> 4) {}
};
// Lanes read rows (lane % 8) + 8 * (lane / 16) at chunk pair element (lane / 8) % 2: two B operands
// of QK^T, keys 0-7 and 8-15.
struct LaneKeyMajor {
  int row, chunk;
  __device__ __forceinline__ explicit LaneKeyMajor(int lane)
      : row((lane & 7) + ((lane >> 4) << 3)), chunk((lane >> 3) & 1) {}
};

// q: [16 rows][16 dims] at step `k` of the head dimension as an A operand.
template <int kHeadDim>
__device__ __forceinline__ void LoadQueryFragment(std::uint32_t (&q)[4], std::uint32_t tile,
                                                  int first_row, int k, int lane) {
  using Layout = TileLayout<kHeadDim>;
  const LaneRowMajor at(lane);
  ptx::LdmatrixX4(q, Layout::Advance(tile + Layout::Offset(at.row, at.chunk), 2 * k) +
                         first_row * Layout::kRowBytes);
}

// s: [kFragments x 16 rows][8 * kTiles keys] = Q K^T over the whole head dimension.
// query(k, q): fetches the A operands of step k.
template <class Arch, class Element, int kHeadDim, int kFragments, int kTiles, class Query>
__device__ __forceinline__ void ScoreTile(float (&s)[kFragments][kTiles][4], std::uint32_t k_tile,
                                          int lane, Query query) {
  using Layout = TileLayout<kHeadDim>;
  const LaneKeyMajor at(lane);
  const std::uint32_t lane_address = k_tile + Layout::Offset(at.row, at.chunk);
#pragma unroll
  for (int m = 0; m < kFragments; ++m) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[m][n][e] = 0.0F;
    }
  }
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; ++k) {
    std::uint32_t q[kFragments][4];
    query(k, q);
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      std::uint32_t keys[4];
      ptx::LdmatrixX4(keys, Layout::Advance(lane_address, 2 * k) + n * 8 * Layout::kRowBytes);
#pragma unroll
      for (int m = 0; m < kFragments; ++m) {
        Arch::template Mma<Element>(s[m][n], q[m], keys[0], keys[1]);
        Arch::template Mma<Element>(s[m][n + 1], q[m], keys[2], keys[3]);
      }
    }
  }
}

// accumulator: [kFragments x 16 rows][kHeadDim] += P V. The C layout of two score fragments side by
// side is the A layout of one 16x16 operand, so P never leaves the registers.
template <class Arch, class Element, int kHeadDim, int kFragments, int kTiles>
__device__ __forceinline__ void AccumulateTile(float (&accumulator)[kFragments][kHeadDim / 8][4],
                                               const float (&p)[kFragments][kTiles][4],
                                               std::uint32_t v_tile, int lane) {
  using Layout = TileLayout<kHeadDim>;
  const LaneRowMajor at(lane);
  const std::uint32_t lane_address = v_tile + Layout::Offset(at.row, at.chunk);
#pragma unroll
  for (int j = 0; j < kTiles; j += 2) {
    std::uint32_t a[kFragments][4];
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
      a[m][0] = PackPair(p[m][j][0], p[m][j][1], Element{});
      a[m][1] = PackPair(p[m][j][2], p[m][j][3], Element{});
      a[m][2] = PackPair(p[m][j + 1][0], p[m][j + 1][1], Element{});
      a[m][3] = PackPair(p[m][j + 1][2], p[m][j + 1][3], Element{});
    }
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; n += 2) {
      std::uint32_t values[4];
      ptx::LdmatrixX4Trans(values, Layout::Advance(lane_address, n) + j * 8 * Layout::kRowBytes);
#pragma unroll
      for (int m = 0; m < kFragments; ++m) {
        Arch::template Mma<Element>(accumulator[m][n], a[m], values[0], values[1]);
        Arch::template Mma<Element>(accumulator[m][n + 1], a[m], values[2], values[3]);
      }
    }
  }
}

}  // namespace attnd::kernels::device
