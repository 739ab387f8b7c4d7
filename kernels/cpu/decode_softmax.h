// One softmax step of one query row over one tile of scores, in Highway; part of the decode
// targets (decode_tile.h).
#pragma once

#include "kernels/cpu/decode_tile.h"

namespace attnd::kernels {
namespace {

// What turns a raw dot product of one query row into a base-2 logit.
struct RowTransform {
  const AttentionSequence* sequence;
  std::int64_t token;  // query row of the sequence
  int head;
};

struct RowSoftmax {
  float row_max;
  float row_sum;
  float factor;  // for what was accumulated before
};

inline bool IsPlain(const AttentionSequence& sequence) {
  return sequence.logits_soft_cap == 0 && sequence.bias == nullptr &&
         sequence.alibi_slopes == nullptr;
}

// Scale, cap, bias and ALiBi in place. Bias is read for lanes [first, last) only: beyond them it
// may not exist. `tile_key` is the key of lane 0.
inline void TransformScores(const RowTransform& row, std::int64_t tile_key, int first, int last,
                            float* scores) {
  const FloatTag d;
  const AttentionSequence& sequence = *row.sequence;
  alignas(64) float bias[kDecodeTileKeys] = {};
  if (sequence.bias != nullptr) {
    const float* from = sequence.bias + row.head * sequence.bias_head_stride +
                        row.token * sequence.bias_row_stride + tile_key;
    for (int lane = first; lane < last; ++lane) bias[lane] = from[lane];
  }
  const Floats scale = hn::Set(d, sequence.softmax_scale);
  const Floats cap = hn::Set(d, sequence.logits_soft_cap);
  const float slope = sequence.alibi_slopes == nullptr ? 0 : sequence.alibi_slopes[row.head];
  // Distances are exact in FP32 up to 2^24; the lane of the query's own key anchors them.
  const auto own_lane =
      static_cast<float>(sequence.query_position + row.token - sequence.key_position - tile_key);
  for (int lane = 0; lane < kDecodeTileKeys; lane += kLanes) {
    Floats s = hn::Mul(hn::Load(d, scores + lane), scale);
    if (sequence.logits_soft_cap > 0) s = hn::Mul(cap, Tanh(hn::Div(s, cap)));
    if (sequence.bias != nullptr) s = hn::Add(s, hn::Load(d, bias + lane));
    if (slope != 0) {
      const Floats lanes = hn::Iota(d, static_cast<float>(lane));
      const Floats distance = hn::Abs(hn::Sub(hn::Set(d, own_lane), lanes));
      s = hn::NegMulAdd(hn::Set(d, slope), distance, s);
    }
    hn::Store(s, d, scores + lane);
  }
}

// The lanes of a tile that one row sees, and what makes base-2 logits of its scores.
struct RowTile {
  int first, last;  // lanes outside are hidden: selected away, whatever their scores hold
  float scale;
  bool whole() const { return first == 0 && last == kDecodeTileKeys; }
};

HWY_INLINE auto Visible(const RowTile& tile, int lane) {
  const FloatTag d;
  const Floats lanes = hn::Iota(d, static_cast<float>(lane));
  return hn::And(hn::Ge(lanes, hn::Set(d, static_cast<float>(tile.first))),
                 hn::Lt(lanes, hn::Set(d, static_cast<float>(tile.last))));
}

// Applies what is not plain scaling, in place.
inline RowTile PrepareRow(const RowTransform& row, std::int64_t tile_key, int first, int last,
                          float* scores) {
  if (IsPlain(*row.sequence)) return {first, last, row.sequence->softmax_scale * kLog2E};
  TransformScores(row, tile_key, first, last, scores);
  return {first, last, kLog2E};
}

// The tile's largest base-2 logit of a row; -inf: it sees none of the keys.
HWY_INLINE float TileMax(const RowTile& tile, const float* scores) {
  const FloatTag d;
  const Floats minus_infinity = hn::Set(d, MinusInfinity());
  const Floats scale = hn::Set(d, tile.scale);
  Floats largest = minus_infinity;
  for (int lane = 0; lane < kDecodeTileKeys; lane += kLanes) {
    Floats scaled = hn::Mul(hn::Load(d, scores + lane), scale);
    if (!tile.whole()) scaled = hn::IfThenElse(Visible(tile, lane), scaled, minus_infinity);
    largest = hn::Max(scaled, largest);
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

// Probabilities from scores (written to p, all lanes) and the row's advanced state.
template <class Arithmetic>
HWY_INLINE RowSoftmax SoftmaxStep(const RowTile& tile, const float* scores, float tile_max,
                                  float old_max, float old_sum,
                                  typename Arithmetic::Probability* p) {
  const FloatTag d;
  const float new_max = tile_max > old_max ? tile_max : old_max;
  if (new_max == MinusInfinity()) {  // no visible key yet: -inf - -inf must not be formed
    for (int lane = 0; lane < kDecodeTileKeys; lane += kLanes) {
      Arithmetic::StoreProbabilities(hn::Zero(d), p + lane);
    }
    return {new_max, old_sum, 1.0F};
  }
  const Floats minus_infinity = hn::Set(d, MinusInfinity());
  const Floats scale = hn::Set(d, tile.scale);
  const Floats max = hn::Set(d, new_max);
  // From 2^23 on, the product's own rounding exceeds 1: it must be the one that the maximum has.
  const bool huge = __builtin_fabsf(new_max) >= 0x1p23F;
  Floats sum = hn::Zero(d);
  for (int lane = 0; lane < kDecodeTileKeys; lane += kLanes) {
    const Floats s = hn::Load(d, scores + lane);
    Floats x = huge ? hn::Sub(hn::Mul(s, scale), max) : hn::MulSub(s, scale, max);
    if (!tile.whole()) x = hn::IfThenElse(Visible(tile, lane), x, minus_infinity);
    const Floats probability = Exp2(x);
    sum = hn::Add(sum, probability);
    Arithmetic::StoreProbabilities(probability, p + lane);
  }
  const float factor = old_max == new_max ? 1.0F : hn::GetLane(Exp2(hn::Set(d, old_max - new_max)));
  return {new_max, old_sum * factor + hn::GetLane(hn::SumOfLanes(d, sum)), factor};
}

}  // namespace
}  // namespace attnd::kernels
