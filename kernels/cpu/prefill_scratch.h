// The scratch of one thread of fused prefill: shapes of one target's tiles and where its arrays
// lie.
//
// Arrays, in 32-bit units (a float, or a BF16 pair along the summed dimension):
//   q[tile][unit of dims][tile_rows]      k[panel of keys][unit of dims][kPanel]
//   v[panel of dims][unit of keys][kPanel]  s, p[key or unit of keys][tile_rows]
//   accumulator[tile][dim][tile_rows]     row_max, row_sum[tile][tile_rows]
#pragma once

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/prefill_block.h"
#include "kernels/cpu/prefill_rows.h"

namespace attnd::kernels {

namespace hn = hwy::HWY_NAMESPACE;

template <class Target>
class PrefillScratch {
 public:
  using Unit = std::uint32_t;
  static constexpr int kPair = Target::kPair;
  static constexpr int kPanel = Target::kPanel;
  static constexpr int kColumns = Target::kColumns;
  static constexpr int kTileKeys = Target::kTileKeys;
  static constexpr hn::ScalableTag<float> kF32{};
  static constexpr int kLanes = static_cast<int>(hn::MaxLanes(kF32));
  static constexpr int kTileRows = kColumns * kLanes;
  static_assert(kPanel % 4 == 0 && kTileKeys % kPanel == 0 && kLanes % 4 == 0);

  // Units between panels of v. Without the gap the panels of one key would share a few sets of the
  // first-level cache, and packing it would evict its own lines.
  static constexpr int kValueStride = kTileKeys / kPair * kPanel + 16;

  static std::int64_t Bytes(int head_dim) { return Layout(head_dim).total; }

  PrefillScratch(std::byte* memory, int head_dim) : memory_(memory), layout_(head_dim) {}

  // Units of one row of q or k, rounded up to the transposition's step; dims of o in whole panels.
  int dim_units() const { return layout_.dim_units; }
  int padded_dims() const { return layout_.padded_dims; }

  Unit* q(int tile) const {
    return At<Unit>(layout_.q) + std::int64_t{tile} * kTileRows * layout_.dim_units;
  }
  float* accumulator(int tile) const {
    return At<float>(layout_.accumulator) + std::int64_t{tile} * kTileRows * layout_.padded_dims;
  }
  // The panel that begins at `key`, a multiple of kPanel.
  Unit* k(int key) const { return At<Unit>(layout_.k) + std::int64_t{key} * layout_.dim_units; }
  Unit* v(int panel) const { return At<Unit>(layout_.v) + std::int64_t{panel} * kValueStride; }
  float* s(int key) const { return At<float>(layout_.s) + std::int64_t{key} * kTileRows; }
  // The unit that holds `key`.
  Unit* p(int key) const { return At<Unit>(layout_.p) + std::int64_t{key / kPair} * kTileRows; }
  float* row_max(int tile) const { return At<float>(layout_.row_max) + tile * kTileRows; }
  float* row_sum(int tile) const { return At<float>(layout_.row_sum) + tile * kTileRows; }
  // Rows on their way between two layouts, and a row of zeros.
  Unit* staged(int row) const { return At<Unit>(layout_.staged) + row * Rows::kMaxRowUnits; }
  Unit* zeros() const { return At<Unit>(layout_.zeros); }

 private:
  using Rows = PrefillRows<Target>;

  struct Layout {
    explicit Layout(int head_dim)
        : dim_units(((head_dim + kPair - 1) / kPair + 3) / 4 * 4),
          padded_dims((head_dim + kPanel - 1) / kPanel * kPanel) {
      constexpr std::int64_t kRows = std::int64_t{kMaxBlockTiles} * kTileRows;
      q = Take(kRows * dim_units);
      accumulator = Take(kRows * padded_dims);
      k = Take(std::int64_t{kTileKeys} * dim_units);
      v = Take(std::int64_t{kValueStride} * (padded_dims / kPanel));
      s = Take(std::int64_t{kTileKeys} * kTileRows);
      p = kPair == 1 ? s : Take(std::int64_t{kTileKeys} / kPair * kTileRows);
      row_max = Take(kRows);
      row_sum = Take(kRows);
      staged = Take(std::int64_t{kLanes} * Rows::kMaxRowUnits);
      zeros = Take(Rows::kMaxRowUnits);
    }
    std::int64_t Take(std::int64_t units) {
      const std::int64_t begin = total;
      total += (units * 4 + 127) / 128 * 128;
      return begin;
    }
    int dim_units, padded_dims;
    std::int64_t total = 0;
    std::int64_t q, accumulator, k, v, s, p, row_max, row_sum, staged, zeros;
  };

  template <class Element>
  Element* At(std::int64_t offset) const {
    return reinterpret_cast<Element*>(memory_ + offset);
  }

  std::byte* memory_;
  Layout layout_;
};

}  // namespace attnd::kernels
