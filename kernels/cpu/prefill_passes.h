// The passes of fused prefill over one segment of a key tile: scores, probabilities, and their
// product with V. Nearly all of a launch's time is spent in MultiplyPanel.
#pragma once

#include <hwy/highway.h>

#include <cstdint>

#include "kernels/cpu/prefill_options.h"
#include "kernels/cpu/prefill_packer.h"
#include "kernels/cpu/prefill_scratch.h"

namespace attnd::kernels {

namespace hn = hwy::HWY_NAMESPACE;

template <class Target>
class PrefillPasses {
 public:
  using Scratch = PrefillScratch<Target>;
  using Prefetch = KeyPrefetch<Target>;
  using Unit = std::uint32_t;
  static constexpr hn::ScalableTag<float> kF32{};
  using F32 = hn::Vec<decltype(kF32)>;
  static constexpr int kPair = Scratch::kPair;
  static constexpr int kPanel = Scratch::kPanel;
  static constexpr int kLanes = Scratch::kLanes;
  static constexpr int kTileRows = Scratch::kTileRows;
  // From here on FP32 has no fraction bits: s * c - max must round s * c as max was rounded.
  static constexpr float kLargeMax = 0x1p23F;
  // Units of a score that are summed in one chain. Rounding grows with a chain's length, so the
  // sums of longer rows are added from several.
  static constexpr int kChainUnits = 64;

  // s: [key][rows] of one segment, from units [unit, unit + num_units) of q and k; kMore adds to
  // what s holds. The last call for a plain segment takes the maximum on the way (max_too).
  template <int kNumColumns, bool kMore>
  HWY_NOINLINE static void Score(const Scratch& scratch, int tile, int unit, int num_units,
                                 const TileSegment& segment, bool max_too, Prefetch& prefetch,
                                 float* tile_max) {
    F32 max[kNumColumns];
    tile_max += segment.column * kLanes;
    for (int c = 0; c < kNumColumns; ++c) max[c] = hn::Load(kF32, tile_max + c * kLanes);
    const Unit* rows = scratch.q(tile) + unit * kTileRows + segment.column * kLanes;
    for (int key = segment.begin; key < segment.end; key += kPanel) {
      if constexpr (!kMore) prefetch.Step();
      F32 sums[kPanel][kNumColumns];
      HWY_UNROLL(8)
      for (int i = 0; i < kPanel; ++i) {
        HWY_UNROLL(4)
        for (int c = 0; c < kNumColumns; ++c) sums[i][c] = hn::Zero(kF32);
      }
      MultiplyPanel<kNumColumns>(scratch.k(key) + unit * kPanel, rows, num_units, sums);
      float* out = scratch.s(key) + segment.column * kLanes;
      HWY_UNROLL(8)
      for (int i = 0; i < kPanel; ++i) {
        HWY_UNROLL(4)
        for (int c = 0; c < kNumColumns; ++c) {
          float* score = out + i * kTileRows + c * kLanes;
          if constexpr (kMore) sums[i][c] = hn::Add(hn::Load(kF32, score), sums[i][c]);
          max[c] = hn::Max(max[c], sums[i][c]);
          hn::Store(sums[i][c], kF32, score);
        }
      }
    }
    if (!max_too) return;
    for (int c = 0; c < kNumColumns; ++c) hn::Store(max[c], kF32, tile_max + c * kLanes);
  }

  // p = 2^(s * c - row_max), added to tile_sum. kAnyLarge: some |row_max| is so large that its
  // product's rounding must come before the subtraction.
  template <int kNumColumns, bool kAnyLarge>
  HWY_NOINLINE static void Normalise(const Scratch& scratch, const TileSegment& segment,
                                     float score_to_base2, const float* minus_max,
                                     float* tile_sum) {
    const F32 to_base2 = hn::Set(kF32, score_to_base2);
    const int column = segment.column * kLanes;
    F32 offset[kNumColumns];
    F32 sum[kNumColumns];
    for (int c = 0; c < kNumColumns; ++c) {
      offset[c] = hn::Load(kF32, minus_max + column + c * kLanes);
      sum[c] = hn::Load(kF32, tile_sum + column + c * kLanes);
    }
    const auto probability = [&](const float* score, int c) {
      const F32 value = hn::Load(kF32, score);
      if constexpr (kAnyLarge) {
        // Per row, so that a row's bits do not depend on its neighbours.
        const auto large = hn::Ge(hn::Abs(offset[c]), hn::Set(kF32, kLargeMax));
        const F32 rounded = hn::Add(hn::Mul(value, to_base2), offset[c]);
        return Target::Exp2(hn::IfThenElse(large, rounded, hn::MulAdd(value, to_base2, offset[c])));
      } else {
        return Target::Exp2(hn::MulAdd(value, to_base2, offset[c]));
      }
    };
    for (int key = segment.begin; key < segment.end; key += kPair) {
      const float* scores = scratch.s(key) + column;
      Unit* out = scratch.p(key) + column;
      HWY_UNROLL(4)
      for (int c = 0; c < kNumColumns; ++c) {
        const F32 first = probability(scores + c * kLanes, c);
        sum[c] = hn::Add(sum[c], first);
        if constexpr (kPair == 1) {
          Target::StoreProbabilities(first, out + c * kLanes);
        } else {
          // A segment of odd length ends with an absent key.
          F32 second = hn::Zero(kF32);
          if (HWY_LIKELY(key + 1 < segment.end)) {
            second = probability(scores + kTileRows + c * kLanes, c);
          }
          sum[c] = hn::Add(sum[c], second);
          Target::StoreProbabilities(first, second, out + c * kLanes);
        }
      }
    }
    for (int c = 0; c < kNumColumns; ++c) {
      hn::Store(sum[c], kF32, tile_sum + column + c * kLanes);
    }
  }

  // One panel of dims over one segment of a key tile: sums[dim][rows] += p * v. `sums` belong to
  // this key tile alone, since one chain through all keys would round each of them at the size of
  // the whole. kWhole: the segment is all that the tile has; the sums are formed in registers and
  // added to `sums`, here the row's accumulator.
  template <int kNumColumns, bool kWhole>
  HWY_NOINLINE static void Accumulate(const Scratch& scratch, int panel, const TileSegment& segment,
                                      Prefetch& prefetch, float* sums) {
    prefetch.Step();
    float* values = sums + segment.column * kLanes;
    F32 registers[kPanel][kNumColumns];
    HWY_UNROLL(8)
    for (int i = 0; i < kPanel; ++i) {
      HWY_UNROLL(4)
      for (int c = 0; c < kNumColumns; ++c) {
        registers[i][c] =
            kWhole ? hn::Zero(kF32) : hn::Load(kF32, values + i * kTileRows + c * kLanes);
      }
    }
    const int steps = (segment.end - segment.begin + kPair - 1) / kPair;
    MultiplyPanel<kNumColumns>(scratch.v(panel) + segment.begin / kPair * kPanel,
                               scratch.p(segment.begin) + segment.column * kLanes, steps,
                               registers);
    HWY_UNROLL(8)
    for (int i = 0; i < kPanel; ++i) {
      HWY_UNROLL(4)
      for (int c = 0; c < kNumColumns; ++c) {
        float* value = values + i * kTileRows + c * kLanes;
        if constexpr (kWhole) {
          hn::Store(hn::Add(hn::Load(kF32, value), registers[i][c]), kF32, value);
        } else {
          hn::Store(registers[i][c], kF32, value);
        }
      }
    }
  }

 private:
  // sums[i][c] += sum over steps of panel[step][i] * rows[step][c].
  template <int kNumColumns>
  static HWY_INLINE void MultiplyPanel(const Unit* HWY_RESTRICT panel,
                                       const Unit* HWY_RESTRICT rows, int steps,
                                       F32 (&sums)[kPanel][kNumColumns]) {
    for (int step = 0; step < steps; ++step) {
      typename Target::Units row_units[kNumColumns];
      HWY_UNROLL(4)
      for (int c = 0; c < kNumColumns; ++c) row_units[c] = Target::Load(rows + c * kLanes);
      HWY_UNROLL(8)
      for (int i = 0; i < kPanel; ++i) {
        const auto value = Target::Broadcast(panel + i);
        HWY_UNROLL(4)
        for (int c = 0; c < kNumColumns; ++c) {
          sums[i][c] = Target::MultiplyAdd(value, row_units[c], sums[i][c]);
        }
      }
      panel += kPanel;
      rows += kTileRows;
    }
  }
};

}  // namespace attnd::kernels
