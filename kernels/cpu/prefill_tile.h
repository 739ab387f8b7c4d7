// One block of fused prefill: up to kMaxBlockTiles query tiles of one KV head against its keys.
//
// Algorithm  FlashAttention with queries in the lanes. The block walks its keys in tiles of
//            kTileKeys; each K and V tile is packed once and used by every query tile of the block:
//            scores (Score), options and masks (prefill_options.h), row maximum and probabilities
//            (Normalise), probabilities times V (Accumulate). A query row owns one lane of every
//            vector, so maxima, sums and masks need no reduction across lanes and the rescale
//            factors multiply the accumulator lane by lane. Derivation:
//            docs/kernels/cpu_prefill.md.
// Layouts    in 32-bit units (a float, or a BF16 pair along the summed dimension):
//              q[tile][unit of dims][tile_rows]      k[panel of keys][unit of dims][kPanel]
//              v[panel of dims][unit of keys][kPanel]  s, p[key or unit of keys][tile_rows]
//              accumulator[tile][dim][tile_rows]
//            A microkernel multiplies a panel (kPanel values, broadcast) with kColumns vectors of
//            rows: kPanel x kColumns accumulators in registers, the summed dimension innermost.
// Edges      A tile is cut into segments: runs of key panels that the same vectors of rows see.
//            Hidden vectors are never computed; single hidden keys are masked by selection.
// Limits     head_dim <= kMaxHeadDim; scratch as ScratchBytes. NaN or infinity in K or V may leak
//            from hidden keys into a tile: Run reports tiles whose o is not finite.
#pragma once

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/prefill_block.h"
#include "kernels/cpu/prefill_options.h"
#include "kernels/cpu/prefill_packer.h"
#include "kernels/cpu/prefill_passes.h"
#include "kernels/cpu/prefill_scratch.h"

namespace attnd::kernels {

namespace hn = hwy::HWY_NAMESPACE;

// Target: the operations and shape of one SIMD target; see prefill_avx512.cc.
template <class Target>
class PrefillTile {
 public:
  static constexpr int kTileRows = PrefillScratch<Target>::kTileRows;

  static std::int64_t ScratchBytes(int head_dim) { return PrefillScratch<Target>::Bytes(head_dim); }

  static std::uint32_t Run(const AttentionParams& params, const PrefillBlock& block,
                           std::byte* scratch) {
    PrefillTile tile(params, block, scratch);
    tile.packer_.PackQueries(tile.num_tiles_);
    tile.ClearState();
    tile.VisitKeys();
    return tile.packer_.WriteOutput();
  }

 private:
  using Scratch = PrefillScratch<Target>;
  using Passes = PrefillPasses<Target>;
  static constexpr int kPanel = Scratch::kPanel;
  static constexpr int kColumns = Scratch::kColumns;
  static constexpr int kTileKeys = Scratch::kTileKeys;
  static constexpr int kLanes = Scratch::kLanes;
  static constexpr hn::ScalableTag<float> kF32{};
  using F32 = hn::Vec<decltype(kF32)>;
  static constexpr int kMaxSegments = kTileKeys / kPanel;
  static constexpr float kInfinity = __builtin_huge_valf();
  static constexpr float kLog2E = 1.4426950408889634F;

  PrefillTile(const AttentionParams& params, const PrefillBlock& block, std::byte* scratch)
      : block_(block),
        sequence_(*block.sequence),
        num_tiles_((block.num_rows + kTileRows - 1) / kTileRows),
        scratch_(scratch, params.head_dim),
        packer_(params, block, scratch_),
        options_(params, block),
        score_to_base2_((options_.any() ? 1.0F : options_.scale()) * kLog2E),
        prefetch_(block.kv, packer_.row_bytes(),
                  num_tiles_ * (kTileKeys + scratch_.padded_dims()) / kPanel) {}

  void ClearState() const {
    const std::int64_t rows = std::int64_t{num_tiles_} * kTileRows;
    std::memset(scratch_.accumulator(0), 0, rows * scratch_.padded_dims() * sizeof(float));
    for (std::int64_t row = 0; row < rows; ++row) {
      scratch_.row_max(0)[row] = -kInfinity;
      scratch_.row_sum(0)[row] = 0;
    }
  }

  // Union of the visible keys of rows [begin, end).
  KeyRange Visible(int begin, int end) const {
    KeyRange all{0, 0};
    for (int row = begin; row < end && row < block_.num_rows; ++row) {
      const KeyRange& keys = block_.visible[row];
      if (keys.begin == keys.end) continue;
      if (all.begin == all.end) {
        all = keys;
        continue;
      }
      if (keys.begin < all.begin) all.begin = keys.begin;
      if (keys.end > all.end) all.end = keys.end;
    }
    return all;
  }

  // Key tiles start at multiples of kTileKeys on the position axis, whatever the block sees, so
  // that a row's sums do not depend on its neighbours.
  void VisitKeys() {
    const KeyRange keys = Visible(0, block_.num_rows);
    if (keys.begin == keys.end) return;
    KeyRange tile_keys[kMaxBlockTiles];
    for (int tile = 0; tile < num_tiles_; ++tile) {
      tile_keys[tile] = Visible(tile * kTileRows, (tile + 1) * kTileRows);
    }
    const std::int64_t offset = ((sequence_.key_position % kTileKeys) + kTileKeys) % kTileKeys;
    std::int64_t begin = (keys.begin + offset) / kTileKeys * kTileKeys - offset;
    for (; begin < keys.end; begin += kTileKeys) {
      const std::int64_t first = begin < 0 ? 0 : begin;
      const std::int64_t end = begin + kTileKeys < keys.end ? begin + kTileKeys : keys.end;
      packer_.PackKeys(first, static_cast<int>(end - first));
      prefetch_.Begin(end, end + kTileKeys < keys.end ? end + kTileKeys : keys.end);
      for (int tile = 0; tile < num_tiles_; ++tile) {
        if (tile_keys[tile].begin < end && tile_keys[tile].end > first) {
          VisitTile(tile, first, static_cast<int>(end - first));
        }
      }
    }
  }

  // Cuts keys [0, num_keys) of a key tile into segments for one query tile.
  HWY_NOINLINE int CutSegments(int tile, std::int64_t first, int num_keys,
                               TileSegment* segments) const {
    ColumnKeys columns[kColumns];
    for (int column = 0; column < kColumns; ++column) {
      columns[column] = options_.Column(tile, column, first, num_keys);
    }
    int count = 0;
    for (int begin = 0; begin < num_keys; begin += kPanel) {
      const int end = begin + kPanel < num_keys ? begin + kPanel : num_keys;
      TileSegment next{begin, end, kColumns, 0, end - begin != kPanel};
      for (int column = 0; column < kColumns; ++column) {
        const ColumnKeys& keys = columns[column];
        if (keys.any_begin >= end || keys.any_end <= begin) continue;
        if (next.column == kColumns) next.column = column;
        next.num_columns = column + 1 - next.column;
        next.masked |= begin < keys.all_begin || end > keys.all_end;
      }
      if (next.num_columns == 0) continue;
      TileSegment* last = count > 0 ? &segments[count - 1] : nullptr;
      if (last != nullptr && last->end == begin && last->column == next.column &&
          last->num_columns == next.num_columns && last->masked == next.masked) {
        last->end = end;
      } else {
        segments[count++] = next;
      }
    }
    return count;
  }

  void VisitTile(int tile, std::int64_t first, int num_keys) {
    TileSegment segments[kMaxSegments];
    const int count = CutSegments(tile, first, num_keys, segments);
    alignas(64) float tile_max[kTileRows];
    for (float& max : tile_max) max = -kInfinity;
    bool masks_ready = false;
    for (int i = 0; i < count; ++i) {
      const TileSegment& segment = segments[i];
      const bool plain = !segment.masked && !options_.any();
      ForColumns(segment.num_columns, [&](auto columns) {
        ScoreSegment<columns.kValue>(tile, segment, plain, tile_max);
      });
      if (plain) continue;
      if (!masks_ready) {
        options_.PrepareKeys(tile, first, num_keys);
        masks_ready = true;
      }
      if (options_.any()) options_.Apply(segment, scratch_.s(0));
      options_.MaskAndMax(segment, scratch_.s(0), tile_max);
    }
    alignas(64) float minus_max[kTileRows];
    const bool any_large = RaiseMax(tile, tile_max, minus_max);
    // Summed over the whole key tile before it joins row_sum: the order of additions must not
    // depend on how the tile is cut.
    alignas(64) float tile_sum[kTileRows] = {};
    for (int i = 0; i < count; ++i) {
      ForColumns(segments[i].num_columns, [&](auto columns) {
        if (any_large) {
          Passes::template Normalise<columns.kValue, true>(scratch_, segments[i], score_to_base2_,
                                                           minus_max, tile_sum);
        } else {
          Passes::template Normalise<columns.kValue, false>(scratch_, segments[i], score_to_base2_,
                                                            minus_max, tile_sum);
        }
      });
    }
    for (int lane = 0; lane < kTileRows; ++lane) scratch_.row_sum(tile)[lane] += tile_sum[lane];
    for (int panel = 0; panel < scratch_.padded_dims() / kPanel; ++panel) {
      float* values = scratch_.accumulator(tile) + std::int64_t{panel} * kPanel * kTileRows;
      if (count == 1) {
        ForColumns(segments[0].num_columns, [&](auto columns) {
          Passes::template Accumulate<columns.kValue, true>(scratch_, panel, segments[0], prefetch_,
                                                            values);
        });
      } else {
        AccumulateCut(panel, segments, count, values);
      }
    }
  }

  template <int kNumColumns>
  void ScoreSegment(int tile, const TileSegment& segment, bool plain, float* tile_max) {
    constexpr int kChain = Passes::kChainUnits;
    const int num_units = packer_.num_units();
    Passes::template Score<kNumColumns, false>(scratch_, tile, 0,
                                               num_units < kChain ? num_units : kChain, segment,
                                               plain && num_units <= kChain, prefetch_, tile_max);
    for (int unit = kChain; unit < num_units; unit += kChain) {
      const int rest = num_units - unit;
      Passes::template Score<kNumColumns, true>(scratch_, tile, unit, rest < kChain ? rest : kChain,
                                                segment, plain && rest <= kChain, prefetch_,
                                                tile_max);
    }
  }

  // The sums of a tile that is cut go on from segment to segment in `sums`, so that they are those
  // of the same tile in one piece.
  HWY_NOINLINE void AccumulateCut(int panel, const TileSegment* segments, int count,
                                  float* values) {
    alignas(64) float sums[kPanel * kTileRows] = {};
    for (int i = 0; i < count; ++i) {
      ForColumns(segments[i].num_columns, [&](auto columns) {
        Passes::template Accumulate<columns.kValue, false>(scratch_, panel, segments[i], prefetch_,
                                                           sums);
      });
    }
    for (int i = 0; i < kPanel * kTileRows; i += kLanes) {
      hn::Store(hn::Add(hn::Load(kF32, values + i), hn::Load(kF32, sums + i)), kF32, values + i);
    }
  }

  template <int kNumber>
  struct Count {
    static constexpr int kValue = kNumber;
  };
  // Calls run with the number of columns as a compile-time value.
  template <class Function>
  static HWY_INLINE void ForColumns(int num_columns, Function run) {
    if constexpr (kColumns >= 4) {
      if (num_columns == 4) return run(Count<4>());
    }
    if constexpr (kColumns >= 3) {
      if (num_columns == 3) return run(Count<3>());
    }
    if constexpr (kColumns >= 2) {
      if (num_columns == 2) return run(Count<2>());
    }
    run(Count<1>());
  }

  // Takes the tile's maxima into row_max where they exceed it by more than 2^8 (a row keeps
  // its old maximum otherwise: its probabilities stay below 2^8 and the result is the same),
  // rescales sums and accumulators, and writes -row_max (0 for a row that has seen no key).
  // True: some |row_max| is at least kLargeMax.
  HWY_NOINLINE bool RaiseMax(int tile, const float* tile_max, float* minus_max) {
    const F32 slack = hn::Set(kF32, 8.0F);
    const F32 none = hn::Set(kF32, -kInfinity);
    const F32 to_base2 = hn::Set(kF32, score_to_base2_);
    alignas(64) float factors[kTileRows];
    bool raised = false;
    bool rescale = false;
    bool large = false;
    for (int c = 0; c < kTileRows; c += kLanes) {
      const F32 old_max = hn::Load(kF32, scratch_.row_max(tile) + c);
      const F32 seen = hn::Mul(hn::Load(kF32, tile_max + c), to_base2);
      const auto raise = hn::Gt(seen, hn::Add(old_max, slack));
      const F32 max = hn::IfThenElse(raise, seen, old_max);
      const F32 factor =
          hn::IfThenElse(raise, Target::Exp2(hn::Sub(old_max, max)), hn::Set(kF32, 1.0F));
      hn::Store(max, kF32, scratch_.row_max(tile) + c);
      hn::Store(factor, kF32, factors + c);
      hn::Store(hn::IfThenZeroElse(hn::Eq(max, none), hn::Neg(max)), kF32, minus_max + c);
      raised |= !hn::AllFalse(kF32, raise);
      rescale |= !hn::AllFalse(kF32, hn::And(raise, hn::Ne(old_max, none)));
      large |= !hn::AllFalse(
          kF32, hn::And(hn::Ge(hn::Abs(max), hn::Set(kF32, Passes::kLargeMax)), hn::Ne(max, none)));
    }
    if (!raised || !rescale) return large;
    F32 factor[kColumns];
    for (int c = 0; c < kColumns; ++c) {
      factor[c] = hn::Load(kF32, factors + c * kLanes);
      float* sum = scratch_.row_sum(tile) + c * kLanes;
      hn::Store(hn::Mul(hn::Load(kF32, sum), factor[c]), kF32, sum);
    }
    float* values = scratch_.accumulator(tile);
    for (int dim = 0; dim < scratch_.padded_dims(); ++dim, values += kTileRows) {
      for (int c = 0; c < kColumns; ++c) {
        float* value = values + c * kLanes;
        hn::Store(hn::Mul(hn::Load(kF32, value), factor[c]), kF32, value);
      }
    }
    return large;
  }

  const PrefillBlock& block_;
  const AttentionSequence& sequence_;
  const int num_tiles_;
  const Scratch scratch_;
  const PrefillPacker<Target> packer_;
  PrefillOptions<Target> options_;
  const float score_to_base2_;
  KeyPrefetch<Target> prefetch_;
};

}  // namespace attnd::kernels
