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
  // are clear in the address's logical chunk and that tiles are aligned to 128 bytes: one XOR and
  // an immediate where `chunks` is known to the compiler.
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

// Sets of B operands in registers. They are fetched kSets - 1 mma groups ahead: left to itself the
// compiler, short of registers, reuses one set and every group of mma then waits a whole shared
// memory latency (33 cycles). A group of two fragments keeps the tensor pipe busy for 24 cycles,
// one of one fragment for 12.
template <int kFragments>
inline constexpr int kOperandSets = kFragments == 1 ? 4 : 2;

// s: [kFragments x 16 rows][8 * kTiles keys] = Q K^T over the whole head dimension.
// query(k, q): fetches the A operands of step k.
template <class Arch, class Element, int kHeadDim, int kFragments, int kTiles, class Query>
__device__ __forceinline__ void ScoreTile(float (&s)[kFragments][kTiles][4], std::uint32_t k_tile,
                                          int lane, Query query) {
  using Layout = TileLayout<kHeadDim>;
  constexpr int kSteps = kHeadDim / 16;
  constexpr int kPairs = kTiles / 2;
  const LaneKeyMajor at(lane);
  const std::uint32_t lane_address = k_tile + Layout::Offset(at.row, at.chunk);
  constexpr int kSets = kOperandSets<kFragments>;
  const auto fetch = [&](std::uint32_t(&operands)[4], int i) {
    ptx::LdmatrixX4(operands, Layout::Advance(lane_address, 2 * (i / kPairs)) +
                                  i % kPairs * 16 * Layout::kRowBytes);
  };
  std::uint32_t q[2][kFragments][4];
  std::uint32_t keys[kSets][4];
  query(0, q[0]);
#pragma unroll
  for (int i = 0; i < kSets - 1; ++i) fetch(keys[i], i);
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int i = k * kPairs + pair;
      const int n = 2 * pair;
      if (i + kSets - 1 < kSteps * kPairs) fetch(keys[(i + kSets - 1) % kSets], i + kSets - 1);
      if (pair == 0 && k + 1 < kSteps) query(k + 1, q[(k + 1) % 2]);
#pragma unroll
      for (int m = 0; m < kFragments; ++m) {
        if (k == 0) {
#pragma unroll
          for (int e = 0; e < 4; ++e) s[m][n][e] = s[m][n + 1][e] = 0.0F;
        }
        Arch::template Mma<Element>(s[m][n], q[k % 2][m], keys[i % kSets][0], keys[i % kSets][1]);
      }
#pragma unroll
      for (int m = 0; m < kFragments; ++m) {
        Arch::template Mma<Element>(s[m][n + 1], q[k % 2][m], keys[i % kSets][2],
                                    keys[i % kSets][3]);
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
  constexpr int kPairs = kHeadDim / 16;
  constexpr int kGroups = kTiles / 2 * kPairs;
  const LaneRowMajor at(lane);
  const std::uint32_t lane_address = v_tile + Layout::Offset(at.row, at.chunk);
  std::uint32_t a[kFragments][4];
  constexpr int kSets = kOperandSets<kFragments>;
  const auto fetch = [&](std::uint32_t(&operands)[4], int i) {
    ptx::LdmatrixX4Trans(operands, Layout::Advance(lane_address, 2 * (i % kPairs)) +
                                       i / kPairs * 16 * Layout::kRowBytes);
  };
  std::uint32_t values[kSets][4];
#pragma unroll
  for (int i = 0; i < kSets - 1; ++i) fetch(values[i], i);
#pragma unroll
  for (int j = 0; j < kTiles; j += 2) {
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
      a[m][0] = PackPair(p[m][j][0], p[m][j][1], Element{});
      a[m][1] = PackPair(p[m][j][2], p[m][j][3], Element{});
      a[m][2] = PackPair(p[m][j + 1][0], p[m][j + 1][1], Element{});
      a[m][3] = PackPair(p[m][j + 1][2], p[m][j + 1][3], Element{});
    }
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int i = j / 2 * kPairs + pair;
      const int n = 2 * pair;
      if (i + kSets - 1 < kGroups) fetch(values[(i + kSets - 1) % kSets], i + kSets - 1);
#pragma unroll
      for (int m = 0; m < kFragments; ++m) {
        Arch::template Mma<Element>(accumulator[m][n], a[m], values[i % kSets][0],
                                    values[i % kSets][1]);
      }
#pragma unroll
      for (int m = 0; m < kFragments; ++m) {
        Arch::template Mma<Element>(accumulator[m][n + 1], a[m], values[i % kSets][2],
                                    values[i % kSets][3]);
      }
    }
  }
}

}  // namespace attnd::kernels::device
