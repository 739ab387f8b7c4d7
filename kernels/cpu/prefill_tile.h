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
#include "kernels/cpu/prefill_math.h"
#include "kernels/cpu/prefill_options.h"
#include "kernels/cpu/prefill_rows.h"

namespace attnd::kernels {

namespace hn = hwy::HWY_NAMESPACE;

// Target: Unit operations and shape of one SIMD target; see prefill_avx512.cc.
template <class Target>
class PrefillTile {
 public:
  static constexpr int kPair = Target::kPair;
  static constexpr int kPanel = Target::kPanel;
  static constexpr int kColumns = Target::kColumns;
  static constexpr int kTileKeys = Target::kTileKeys;
  static constexpr hn::ScalableTag<float> kF32{};
  static constexpr int kLanes = static_cast<int>(hn::MaxLanes(kF32));
  static constexpr int kTileRows = kColumns * kLanes;
  static_assert(kPanel % 4 == 0 && kTileKeys % kPanel == 0 && kLanes % 4 == 0);

  static std::int64_t ScratchBytes(int head_dim) { return Layout(head_dim).total; }

  static std::uint32_t Run(const AttentionParams& params, const PrefillBlock& block,
                           std::byte* scratch) {
    PrefillTile tile(params, block, scratch);
    tile.PackQueries();
    tile.VisitKeys();
    return tile.Finish();
  }

 private:
  using F32 = hn::Vec<decltype(kF32)>;
  using Unit = std::uint32_t;
  using Rows = PrefillRows<Target>;
  using Math = PrefillMath<Target>;
  using Options = PrefillOptions<Target>;
  using Segment = TileSegment;

  static constexpr int kMaxSegments = kTileKeys / kPanel;
  // Units between panels of v. Without the gap the panels of one key would share a few sets of the
  // first-level cache, and packing it would evict its own lines.
  static constexpr int kValueStride = kTileKeys / kPair * kPanel + 16;
  static constexpr float kInfinity = __builtin_huge_valf();

  // Byte offsets of the scratch arrays.
  struct Layout {
    explicit Layout(int head_dim)
        : dim_units(((head_dim + kPair - 1) / kPair + 3) / 4 * 4),
          padded_dims((head_dim + kPanel - 1) / kPanel * kPanel) {
      constexpr std::int64_t rows = std::int64_t{kMaxBlockTiles} * kTileRows;
      q = Take(rows * dim_units);
      accumulator = Take(rows * padded_dims);
      k = Take(std::int64_t{kTileKeys} * dim_units);
      v = Take(std::int64_t{kValueStride} * (padded_dims / kPanel));
      s = Take(std::int64_t{kTileKeys} * kTileRows);
      p = kPair == 1 ? s : Take(std::int64_t{kTileKeys} / kPair * kTileRows);
      row_max = Take(rows);
      row_sum = Take(rows);
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

  PrefillTile(const AttentionParams& params, const PrefillBlock& block, std::byte* scratch)
      : params_(params),
        block_(block),
        sequence_(*block.sequence),
        group_(params.num_heads / params.num_kv_heads),
        num_tiles_((block.num_rows + kTileRows - 1) / kTileRows),
        num_units_((params.head_dim + kPair - 1) / kPair),
        layout_(params.head_dim),
        scratch_(scratch),
        options_(params, block),
        score_to_base2_((options_.any() ? 1.0F : options_.scale()) * 1.4426950408889634F),
        row_bytes_(params.head_dim * ElementSize(params.kv_data_type)) {
    const int panels = num_tiles_ * (kTileKeys + layout_.padded_dims) / kPanel;
    prefetch_rows_ = (kTileKeys + panels - 1) / panels;
  }

  template <class Element>
  Element* At(std::int64_t offset) const {
    return reinterpret_cast<Element*>(scratch_ + offset);
  }
  Unit* q(int tile) const {
    return At<Unit>(layout_.q) + std::int64_t{tile} * kTileRows * layout_.dim_units;
  }
  float* accumulator(int tile) const {
    return At<float>(layout_.accumulator) + std::int64_t{tile} * kTileRows * layout_.padded_dims;
  }
  float* s() const { return At<float>(layout_.s); }
  Unit* p() const { return At<Unit>(layout_.p); }
  float* row_max(int tile) const { return At<float>(layout_.row_max) + tile * kTileRows; }
  float* row_sum(int tile) const { return At<float>(layout_.row_sum) + tile * kTileRows; }
  Unit* staged(int row) const { return At<Unit>(layout_.staged) + row * Rows::kMaxRowUnits; }
  const Unit* zeros() const { return At<Unit>(layout_.zeros); }

  // Row of q (or o) of packed row `row` of the block.
  std::int64_t RowOffset(int row, std::int64_t token_stride, std::int64_t head_stride) const {
    const std::int64_t packed = block_.row_begin + row;
    return packed / group_ * token_stride +
           (block_.kv_head * group_ + packed % group_) * head_stride;
  }

  std::int64_t QueryOffset(int row) const {
    return RowOffset(row, sequence_.q_token_stride, sequence_.q_head_stride) *
           ElementSize(params_.data_type);
  }

  HWY_NOINLINE void PackQueries() {
    std::memset(At<Unit>(layout_.zeros), 0, Rows::kMaxRowUnits * sizeof(Unit));
    const auto* base = static_cast<const std::byte*>(sequence_.q);
    const bool in_place = Rows::InPlace(params_.data_type, params_.head_dim);
    for (int tile = 0; tile < num_tiles_; ++tile) {
      for (int lane = 0; lane < kTileRows; lane += 4) {
        const Unit* rows[4];
        for (int i = 0; i < 4; ++i) {
          const int row = tile * kTileRows + lane + i;
          rows[i] = zeros();
          if (row < block_.num_rows) {
            const std::byte* from = base + QueryOffset(row);
            if (row + 8 < block_.num_rows) PrefetchRow(base + QueryOffset(row + 8));
            if (in_place) {
              rows[i] = reinterpret_cast<const Unit*>(from);
            } else {
              Rows::Stage(from, params_.data_type, params_.head_dim, staged(i));
              rows[i] = staged(i);
            }
          }
        }
        Rows::Transpose4(rows, num_units_, q(tile) + lane, kTileRows);
      }
    }
    ApplyScaleSign();
    const std::int64_t rows = std::int64_t{num_tiles_} * kTileRows;
    std::memset(accumulator(0), 0, rows * layout_.padded_dims * sizeof(float));
    for (std::int64_t row = 0; row < rows; ++row) {
      row_max(0)[row] = -kInfinity;
      row_sum(0)[row] = 0;
    }
  }

  static constexpr std::int64_t ElementSize(DataType type) {
    return type == DataType::kFp32 ? 4 : 2;
  }

  // A negative scale flips the sign of q, which is exact; scale 0 makes it zero, so that every
  // visible key weighs 1.
  void ApplyScaleSign() {
    if (sequence_.softmax_scale > 0) return;
    const Unit flip = sequence_.softmax_scale < 0 ? Target::kSignBits : 0U;
    const Unit keep = sequence_.softmax_scale < 0 ? ~0U : 0U;
    Unit* units = q(0);
    const std::int64_t count = std::int64_t{num_tiles_} * kTileRows * layout_.dim_units;
    for (std::int64_t i = 0; i < count; ++i) units[i] = (units[i] & keep) ^ flip;
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
      PackKeys(first, static_cast<int>(end - first));
      prefetch_key_ = end;
      prefetch_end_ = end + kTileKeys < keys.end ? end + kTileKeys : keys.end;
      for (int tile = 0; tile < num_tiles_; ++tile) {
        if (tile_keys[tile].begin < end && tile_keys[tile].end > first) {
          VisitTile(tile, first, static_cast<int>(end - first));
        }
      }
    }
  }

  const std::byte* Address(const std::byte* base, std::int64_t stride, std::int64_t key) const {
    const KvAddress& kv = block_.kv;
    if (kv.page_table == nullptr) return base + key * stride;
    const std::int64_t page = std::int64_t{kv.page_table[key >> kv.page_shift]} * kPageUnitBytes;
    return base + page + (key & ((std::int64_t{1} << kv.page_shift) - 1)) * stride;
  }

  // Asks for the next rows of the key tile to come. Called once a panel, so that the misses spread
  // over the arithmetic: rows of one head lie far apart, and no hardware prefetcher follows them.
  HWY_INLINE void PrefetchKeys() {
    for (int i = 0; i < prefetch_rows_ && prefetch_key_ < prefetch_end_; ++i, ++prefetch_key_) {
      PrefetchRow(Address(block_.kv.k, block_.kv.k_stride_bytes, prefetch_key_));
      PrefetchRow(Address(block_.kv.v, block_.kv.v_stride_bytes, prefetch_key_));
    }
  }
  HWY_INLINE void PrefetchRow(const std::byte* row) const {
    for (std::int64_t byte = 0; byte < row_bytes_; byte += 64) __builtin_prefetch(row + byte);
  }

  HWY_NOINLINE void PackKeys(std::int64_t first, int num_keys) {
    const bool in_place = Rows::InPlace(params_.kv_data_type, params_.head_dim);
    const KvAddress& kv = block_.kv;
    const auto row = [&](const std::byte* base, std::int64_t stride, int key,
                         int slot) -> const Unit* {
      if (key >= num_keys) return zeros();
      const std::byte* from = Address(base, stride, first + key);
      // The first tile of a block has not been asked for; later ones are near already.
      if (key + kPanel < num_keys) PrefetchRow(Address(base, stride, first + key + kPanel));
      if (in_place) return reinterpret_cast<const Unit*>(from);
      Rows::Stage(from, params_.kv_data_type, params_.head_dim, staged(slot));
      return staged(slot);
    };
    for (int panel = 0; panel < num_keys; panel += kPanel) {
      Unit* k = At<Unit>(layout_.k) + std::int64_t{panel} * layout_.dim_units;
      for (int i = 0; i < kPanel; i += 4) {
        const Unit* rows[4];
        for (int j = 0; j < 4; ++j) rows[j] = row(kv.k, kv.k_stride_bytes, panel + i + j, j);
        Rows::Transpose4(rows, num_units_, k + i, kPanel);
      }
      for (int key = panel; key < panel + kPanel; key += kPair) {
        const Unit* rows[kPair];
        for (int i = 0; i < kPair; ++i) rows[i] = row(kv.v, kv.v_stride_bytes, key + i, i);
        Target::PackValues(rows, layout_.padded_dims / kPanel, kValueStride,
                           At<Unit>(layout_.v) + key / kPair * kPanel);
      }
    }
  }

  // Cuts keys [0, num_keys) of a key tile into segments for one query tile.
  HWY_NOINLINE int CutSegments(int tile, std::int64_t first, int num_keys,
                               Segment* segments) const {
    ColumnKeys columns[kColumns];
    for (int column = 0; column < kColumns; ++column) {
      columns[column] = options_.Column(tile, column, first, num_keys);
    }
    int count = 0;
    for (int begin = 0; begin < num_keys; begin += kPanel) {
      const int end = begin + kPanel < num_keys ? begin + kPanel : num_keys;
      Segment next{begin, end, kColumns, 0, end - begin != kPanel};
      for (int column = 0; column < kColumns; ++column) {
        const ColumnKeys& keys = columns[column];
        if (keys.any_begin >= end || keys.any_end <= begin) continue;
        if (next.column == kColumns) next.column = column;
        next.num_columns = column + 1 - next.column;
        next.masked |= begin < keys.all_begin || end > keys.all_end;
      }
      if (next.num_columns == 0) continue;
      Segment* last = count > 0 ? &segments[count - 1] : nullptr;
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
    Segment segments[kMaxSegments];
    const int count = CutSegments(tile, first, num_keys, segments);
    alignas(64) float tile_max[kTileRows];
    for (float& max : tile_max) max = -kInfinity;
    bool masks_ready = false;
    for (int i = 0; i < count; ++i) {
      const Segment& segment = segments[i];
      const bool plain = !segment.masked && !options_.any();
      ForColumns(segment.num_columns, [&](auto columns) {
        Score<columns.value>(tile, segment, plain, tile_max + segment.column * kLanes);
      });
      if (plain) continue;
      if (!masks_ready) {
        options_.PrepareKeys(tile, first, num_keys);
        masks_ready = true;
      }
      if (options_.any()) options_.Apply(segment, s());
      options_.MaskAndMax(segment, s(), tile_max);
    }
    alignas(64) float minus_max[kTileRows];
    const bool large = RaiseMax(tile, tile_max, minus_max);
    // Summed over the whole key tile before it joins row_sum: the order of additions must not
    // depend on how the tile is cut.
    alignas(64) float tile_sum[kTileRows] = {};
    for (int i = 0; i < count; ++i) {
      ForColumns(segments[i].num_columns, [&](auto columns) {
        if (large) {
          Normalise<columns.value, true>(segments[i], minus_max, tile_sum);
        } else {
          Normalise<columns.value, false>(segments[i], minus_max, tile_sum);
        }
      });
    }
    for (int lane = 0; lane < kTileRows; ++lane) row_sum(tile)[lane] += tile_sum[lane];
    for (int panel = 0; panel < layout_.padded_dims / kPanel; ++panel) {
      for (int i = 0; i < count; ++i) {
        ForColumns(segments[i].num_columns,
                   [&](auto columns) { Accumulate<columns.value>(tile, segments[i], panel); });
      }
    }
  }

  template <int kValue>
  struct Count {
    static constexpr int value = kValue;
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

  // s: [key][rows] of one segment. Where it is plain, the maximum is taken on the way.
  template <int kNumColumns>
  HWY_NOINLINE void Score(int tile, const Segment& segment, bool plain, float* tile_max) {
    F32 max[kNumColumns];
    for (int c = 0; c < kNumColumns; ++c) max[c] = hn::Load(kF32, tile_max + c * kLanes);
    const Unit* rows = q(tile) + segment.column * kLanes;
    for (int key = segment.begin; key < segment.end; key += kPanel) {
      PrefetchKeys();
      F32 sums[kPanel][kNumColumns];
      HWY_UNROLL(8)
      for (int i = 0; i < kPanel; ++i) {
        HWY_UNROLL(4)
        for (int c = 0; c < kNumColumns; ++c) sums[i][c] = hn::Zero(kF32);
      }
      MultiplyPanel<kNumColumns>(At<Unit>(layout_.k) + std::int64_t{key} * layout_.dim_units, rows,
                                 num_units_, sums);
      float* out = s() + std::int64_t{key} * kTileRows + segment.column * kLanes;
      HWY_UNROLL(8)
      for (int i = 0; i < kPanel; ++i) {
        HWY_UNROLL(4)
        for (int c = 0; c < kNumColumns; ++c) {
          max[c] = hn::Max(max[c], sums[i][c]);
          hn::Store(sums[i][c], kF32, out + i * kTileRows + c * kLanes);
        }
      }
    }
    if (!plain) return;
    for (int c = 0; c < kNumColumns; ++c) hn::Store(max[c], kF32, tile_max + c * kLanes);
  }

  // Takes the tile's maxima into row_max where they exceed it by more than 2^kSlack (a row keeps
  // its old maximum otherwise: its probabilities stay below 2^kSlack and the result is the same),
  // rescales sums and accumulators, and writes -row_max (0 for a row that has seen no key).
  // True: some |row_max| is so large that a product's rounding must come before the subtraction.
  HWY_NOINLINE bool RaiseMax(int tile, const float* tile_max, float* minus_max) const {
    const F32 slack = hn::Set(kF32, 8.0F);
    const F32 none = hn::Set(kF32, -kInfinity);
    const F32 to_base2 = hn::Set(kF32, score_to_base2_);
    alignas(64) float factors[kTileRows];
    bool raised = false;
    bool rescale = false;
    bool large = false;
    for (int c = 0; c < kTileRows; c += kLanes) {
      const F32 old_max = hn::Load(kF32, row_max(tile) + c);
      const F32 seen = hn::Mul(hn::Load(kF32, tile_max + c), to_base2);
      const auto raise = hn::Gt(seen, hn::Add(old_max, slack));
      const F32 max = hn::IfThenElse(raise, seen, old_max);
      const F32 factor =
          hn::IfThenElse(raise, Target::Exp2(hn::Sub(old_max, max)), hn::Set(kF32, 1.0F));
      hn::Store(max, kF32, row_max(tile) + c);
      hn::Store(factor, kF32, factors + c);
      hn::Store(hn::IfThenZeroElse(hn::Eq(max, none), hn::Neg(max)), kF32, minus_max + c);
      raised |= !hn::AllFalse(kF32, raise);
      rescale |= !hn::AllFalse(kF32, hn::And(raise, hn::Ne(old_max, none)));
      large |= !hn::AllFalse(
          kF32, hn::And(hn::Ge(hn::Abs(max), hn::Set(kF32, 0x1p23F)), hn::Ne(max, none)));
    }
    if (!raised || !rescale) return large;
    F32 factor[kColumns];
    for (int c = 0; c < kColumns; ++c) {
      factor[c] = hn::Load(kF32, factors + c * kLanes);
      float* sum = row_sum(tile) + c * kLanes;
      hn::Store(hn::Mul(hn::Load(kF32, sum), factor[c]), kF32, sum);
    }
    float* values = accumulator(tile);
    for (int dim = 0; dim < layout_.padded_dims; ++dim, values += kTileRows) {
      for (int c = 0; c < kColumns; ++c) {
        float* value = values + c * kLanes;
        hn::Store(hn::Mul(hn::Load(kF32, value), factor[c]), kF32, value);
      }
    }
    return large;
  }

  // p = 2^(s * c - row_max), added to tile_sum.
  template <int kNumColumns, bool kLarge>
  HWY_NOINLINE void Normalise(const Segment& segment, const float* minus_max,
                              float* tile_sum) const {
    const F32 to_base2 = hn::Set(kF32, score_to_base2_);
    const std::int64_t column = std::int64_t{segment.column} * kLanes;
    F32 offset[kNumColumns];
    F32 sum[kNumColumns];
    for (int c = 0; c < kNumColumns; ++c) {
      offset[c] = hn::Load(kF32, minus_max + column + c * kLanes);
      sum[c] = hn::Load(kF32, tile_sum + column + c * kLanes);
    }
    const auto probability = [&](const float* score, int c) {
      const F32 value = hn::Load(kF32, score);
      if constexpr (kLarge) {
        return Target::Exp2(hn::Add(hn::Mul(value, to_base2), offset[c]));
      } else {
        return Target::Exp2(hn::MulAdd(value, to_base2, offset[c]));
      }
    };
    for (int key = segment.begin; key < segment.end; key += kPair) {
      const float* scores = s() + key * std::int64_t{kTileRows} + column;
      Unit* out = p() + key / kPair * std::int64_t{kTileRows} + column;
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

  // accumulator[dim][rows] += p * v for one panel of dims over one segment.
  template <int kNumColumns>
  HWY_NOINLINE void Accumulate(int tile, const Segment& segment, int panel) {
    PrefetchKeys();
    float* values =
        accumulator(tile) + std::int64_t{panel} * kPanel * kTileRows + segment.column * kLanes;
    F32 sums[kPanel][kNumColumns];
    HWY_UNROLL(8)
    for (int i = 0; i < kPanel; ++i) {
      HWY_UNROLL(4)
      for (int c = 0; c < kNumColumns; ++c) {
        sums[i][c] = hn::Load(kF32, values + i * kTileRows + c * kLanes);
      }
    }
    const std::int64_t begin = segment.begin / kPair;
    MultiplyPanel<kNumColumns>(
        At<Unit>(layout_.v) + std::int64_t{panel} * kValueStride + begin * kPanel,
        p() + begin * kTileRows + segment.column * kLanes,
        static_cast<int>((segment.end + kPair - 1) / kPair - begin), sums);
    HWY_UNROLL(8)
    for (int i = 0; i < kPanel; ++i) {
      HWY_UNROLL(4)
      for (int c = 0; c < kNumColumns; ++c) {
        hn::Store(sums[i][c], kF32, values + i * kTileRows + c * kLanes);
      }
    }
  }

  // Divides by the sums, adds the sink, writes o and lse.
  HWY_NOINLINE std::uint32_t Finish() const {
    std::uint32_t not_finite = 0;
    const DataType type = params_.partial ? DataType::kFp32 : params_.data_type;
    auto* base = static_cast<std::byte*>(sequence_.o);
    for (int first = 0; first < block_.num_rows; first += kLanes) {
      // All rows of a vector are staged before one is read: a wide load right after the narrow
      // stores that it covers would wait for them to leave the store buffer.
      const int tile = first / kTileRows;
      const Unit* dims = reinterpret_cast<const Unit*>(accumulator(tile)) + first % kTileRows;
      for (int lane = 0; lane < kLanes; lane += 4) {
        for (int dim = 0; dim < layout_.padded_dims; dim += 4) {
          const Unit* rows[4];
          for (int i = 0; i < 4; ++i) rows[i] = dims + (dim + i) * std::int64_t{kTileRows} + lane;
          Rows::Transpose4(rows, 4, staged(lane) + dim, Rows::kMaxRowUnits);
        }
      }
      for (int row = first; row < first + kLanes && row < block_.num_rows; ++row) {
        const float factor = FinishRow(tile, row - tile * kTileRows);
        std::byte* to = base + RowOffset(row, sequence_.o_token_stride, sequence_.o_head_stride) *
                                   ElementSize(type);
        if (!Rows::Store(reinterpret_cast<const float*>(staged(row - first)), factor,
                         params_.head_dim, type, to)) {
          not_finite |= 1U << static_cast<unsigned>(tile);
        }
      }
    }
    return not_finite;
  }

  // Writes lse; returns what the accumulator is multiplied with: 1 / row_sum, 0 for a row that has
  // seen no key.
  float FinishRow(int tile, int lane) const {
    const std::int64_t packed = block_.row_begin + tile * kTileRows + lane;
    const std::int64_t head = block_.kv_head * group_ + packed % group_;
    float max = row_max(tile)[lane];
    float sum = row_sum(tile)[lane];
    float factor = 1;
    if (sequence_.sink_logits != nullptr && !params_.partial) {
      const float sink = sequence_.sink_logits[head] * 1.4426950408889634F;
      const float joint = sink > max ? sink : max;
      factor = max == joint ? 1.0F : __builtin_exp2f(max - joint);
      sum = sum * factor + __builtin_exp2f(sink - joint);
      max = joint;
    }
    if (sequence_.lse != nullptr) {
      sequence_.lse[packed / group_ * params_.num_heads + head] =
          sum == 0 ? -kInfinity : max * 0.6931471805599453F + __builtin_logf(sum);
    }
    return sum == 0 ? 0.0F : factor / sum;
  }

  const AttentionParams& params_;
  const PrefillBlock& block_;
  const AttentionSequence& sequence_;
  const int group_;
  const int num_tiles_;
  const int num_units_;
  const Layout layout_;
  std::byte* const scratch_;
  Options options_;
  const float score_to_base2_;

  // Next key to prefetch, end of its tile, and the keys that one panel asks for: all of a tile over
  // the panels that the query tiles work through meanwhile.
  std::int64_t prefetch_key_ = 0, prefetch_end_ = 0;
  int prefetch_rows_;
  std::int64_t row_bytes_;
};

}  // namespace attnd::kernels
