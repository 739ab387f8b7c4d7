// Masks and score options of the prefill tile: which keys a vector of rows sees, soft cap, bias and
// ALiBi. Scores lie as s[key of the tile][tile_rows].
#pragma once

#include <hwy/highway.h>

#include <cstdint>

#include "kernels/cpu/prefill_block.h"
#include "kernels/cpu/prefill_math.h"
#include "kernels/cpu/prefill_rows.h"

namespace attnd::kernels {

namespace hn = hwy::HWY_NAMESPACE;

// Keys [begin, end) of a key tile (begin a multiple of the panel) seen by num_columns vectors of
// rows from `column` on. masked: some row does not see all of them, or the last panel is not full.
struct TileSegment {
  int begin;
  int end;
  int column;
  int num_columns;
  bool masked;
};

// Keys of a key tile that any, and that all rows of one vector see.
struct ColumnKeys {
  int any_begin, any_end;
  int all_begin, all_end;
};

template <class Target>
class PrefillOptions {
 public:
  static constexpr hn::ScalableTag<float> kF32{};
  static constexpr int kLanes = static_cast<int>(hn::MaxLanes(kF32));
  static constexpr int kColumns = Target::kColumns;
  static constexpr int kTileRows = kColumns * kLanes;

  PrefillOptions(const AttentionParams& params, const PrefillBlock& block)
      : block_(block),
        sequence_(*block.sequence),
        group_(params.num_heads / params.num_kv_heads),
        any_(sequence_.logits_soft_cap > 0 || sequence_.alibi_slopes != nullptr ||
             sequence_.bias != nullptr) {
    const float scale = sequence_.softmax_scale;
    // The sign, and a scale of zero, are in q already.
    scale_ = scale > 0 ? scale : (scale < 0 ? -scale : 1.0F);
    for (int column = 0; column < kMaxBlockTiles * kColumns; ++column) {
      FindColumn(column * kLanes, any_keys_[column], all_keys_[column]);
    }
  }

  // Whether scores are changed before the mask.
  bool any() const { return any_; }
  // Factor of the dot products that the tile computes.
  float scale() const { return scale_; }

  // Keys [first, first + num_keys) as seen by vector `column` of tile `tile`.
  ColumnKeys Column(int tile, int column, std::int64_t first, int num_keys) const {
    const KeyRange& any = any_keys_[tile * kColumns + column];
    const KeyRange& all = all_keys_[tile * kColumns + column];
    return {Local(any.begin, first, num_keys), Local(any.end, first, num_keys),
            Local(all.begin, first, num_keys), Local(all.end, first, num_keys)};
  }

  // Sets the tile and keys that Apply and MaskAndMax work on.
  HWY_NOINLINE void PrepareKeys(int tile, std::int64_t first, int num_keys) {
    first_row_ = tile * kTileRows;
    first_key_ = first;
    for (int lane = 0; lane < kTileRows; ++lane) {
      const int row = first_row_ + lane;
      // Absent rows see everything: what they compute is never read.
      visible_begin_[lane] = 0;
      visible_end_[lane] = static_cast<float>(num_keys);
      slope_[lane] = 0;
      distance_[lane] = 0;
      if (row >= block_.num_rows) continue;
      visible_begin_[lane] = static_cast<float>(Local(block_.visible[row].begin, first, num_keys));
      visible_end_[lane] = static_cast<float>(Local(block_.visible[row].end, first, num_keys));
      if (sequence_.alibi_slopes == nullptr) continue;
      const std::int64_t packed = block_.row_begin + row;
      slope_[lane] = -sequence_.alibi_slopes[block_.kv_head * group_ + packed % group_];
      const std::int64_t query = sequence_.query_position + packed / group_;
      distance_[lane] = static_cast<float>(query - sequence_.key_position - first);
    }
  }

  // Dot products become scores: scale, soft cap, ALiBi, bias.
  HWY_NOINLINE void Apply(const TileSegment& segment, float* s) const {
    const bool has_cap = sequence_.logits_soft_cap > 0;
    const auto scale = hn::Set(kF32, scale_);
    const auto cap = hn::Set(kF32, sequence_.logits_soft_cap);
    for (int c = 0; c < segment.num_columns; ++c) {
      const int lane = (segment.column + c) * kLanes;
      const auto slope = hn::Load(kF32, slope_ + lane);
      const auto distance = hn::Load(kF32, distance_ + lane);
      for (int key = segment.begin; key < segment.end; ++key) {
        float* score = s + std::int64_t{key} * kTileRows + lane;
        auto value = hn::Mul(hn::Load(kF32, score), scale);
        if (has_cap) value = hn::Mul(cap, PrefillMath<Target>::Tanh(hn::Div(value, cap)));
        if (sequence_.alibi_slopes != nullptr) {
          const auto away = hn::Abs(hn::Sub(distance, hn::Set(kF32, static_cast<float>(key))));
          value = hn::MulAdd(slope, away, value);
        }
        hn::Store(value, kF32, score);
      }
    }
    if (sequence_.bias != nullptr) AddBias(segment, s);
  }

  // Hides what a row does not see and raises tile_max to the segment's maxima.
  HWY_NOINLINE void MaskAndMax(const TileSegment& segment, float* s, float* tile_max) const {
    const auto hidden = hn::Set(kF32, -__builtin_huge_valf());
    for (int c = 0; c < segment.num_columns; ++c) {
      const int lane = (segment.column + c) * kLanes;
      const auto begin = hn::Load(kF32, visible_begin_ + lane);
      const auto end = hn::Load(kF32, visible_end_ + lane);
      auto max = hn::Load(kF32, tile_max + lane);
      for (int key = segment.begin; key < segment.end; ++key) {
        float* score = s + std::int64_t{key} * kTileRows + lane;
        auto value = hn::Load(kF32, score);
        if (segment.masked) {
          const auto index = hn::Set(kF32, static_cast<float>(key));
          const auto visible = hn::And(hn::Ge(index, begin), hn::Lt(index, end));
          value = hn::IfThenElse(visible, value, hidden);
          hn::Store(value, kF32, score);
        }
        max = hn::Max(max, value);
      }
      hn::Store(max, kF32, tile_max + lane);
    }
  }

 private:
  static int Local(std::int64_t key, std::int64_t first, int num_keys) {
    const std::int64_t local = key - first;
    return static_cast<int>(local < 0 ? 0 : (local > num_keys ? num_keys : local));
  }

  // Keys that any and that all of the present rows [row, row + kLanes) see.
  void FindColumn(int row, KeyRange& any, KeyRange& all) const {
    any = {0, 0};
    all = {0, 0};
    for (int i = row; i < row + kLanes && i < block_.num_rows; ++i) {
      const KeyRange& keys = block_.visible[i];
      if (i == row) {
        all = keys;
      } else {
        if (keys.begin > all.begin) all.begin = keys.begin;
        if (keys.end < all.end) all.end = keys.end;
      }
      if (keys.begin == keys.end) continue;
      if (any.begin == any.end) {
        any = keys;
      } else {
        if (keys.begin < any.begin) any.begin = keys.begin;
        if (keys.end > any.end) any.end = keys.end;
      }
    }
  }

  // Row of the bias of packed row `row` of the block, at the first key of the tile.
  const float* BiasRow(int row) const {
    const std::int64_t packed = block_.row_begin + row;
    const std::int64_t head = block_.kv_head * group_ + packed % group_;
    return sequence_.bias + head * sequence_.bias_head_stride +
           packed / group_ * sequence_.bias_row_stride + first_key_;
  }

  // Rows of the bias lie along the keys, scores along the rows: 4 x 4 blocks are turned.
  HWY_NOINLINE void AddBias(const TileSegment& segment, float* s) const {
    using Rows = PrefillRows<Target>;
    constexpr hn::Full128<float> kBlock;
    const int lane_end = (segment.column + segment.num_columns) * kLanes;
    for (int lane = segment.column * kLanes; lane < lane_end; lane += 4) {
      const int present = block_.num_rows - (first_row_ + lane);
      if (present <= 0) return;
      const float* bias[4];
      // Absent rows repeat the last one: what they compute is never read.
      for (int i = 0; i < 4; ++i) {
        bias[i] = BiasRow(first_row_ + lane + (i < present ? i : present - 1));
      }
      int key = segment.begin;
      for (; key + 4 <= segment.end; key += 4) {
        alignas(16) std::uint32_t turned[16];
        const std::uint32_t* rows[4];
        for (int i = 0; i < 4; ++i) rows[i] = reinterpret_cast<const std::uint32_t*>(bias[i] + key);
        Rows::Transpose4(rows, 4, turned, 4);
        for (int i = 0; i < 4; ++i) {
          float* scores = s + std::int64_t{key + i} * kTileRows + lane;
          const auto added = hn::Load(kBlock, reinterpret_cast<const float*>(turned) + 4 * i);
          hn::Store(hn::Add(hn::Load(kBlock, scores), added), kBlock, scores);
        }
      }
      for (; key < segment.end; ++key) {
        for (int i = 0; i < 4; ++i) s[std::int64_t{key} * kTileRows + lane + i] += bias[i][key];
      }
    }
  }

  const PrefillBlock& block_;
  const AttentionSequence& sequence_;
  const int group_;
  const bool any_;
  float scale_;
  KeyRange any_keys_[kMaxBlockTiles * kColumns];
  KeyRange all_keys_[kMaxBlockTiles * kColumns];
  int first_row_ = 0;
  std::int64_t first_key_ = 0;
  alignas(64) float visible_begin_[kTileRows];
  alignas(64) float visible_end_[kTileRows];
  alignas(64) float slope_[kTileRows];
  alignas(64) float distance_[kTileRows];
};

}  // namespace attnd::kernels
