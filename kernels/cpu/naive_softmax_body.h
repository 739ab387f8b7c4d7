// The passes in Highway; included once by each naive_softmax_<target>.cc.
#pragma once

#include <cstring>

#include "kernels/cpu/element.h"
#include "kernels/cpu/naive_softmax.h"
#include "kernels/cpu/simd_math.h"

namespace attnd::kernels {
namespace {

using FloatMask = hn::Mask<FloatTag>;

// Lanes of the vector at `key` that lie in the visible range.
HWY_INLINE FloatMask VisibleLanes(std::int64_t key, const KeyRange& visible) {
  const FloatTag d;
  const Floats lanes = hn::Iota(d, 0.0F);
  // Both ends relative to the vector: small numbers, exact in FP32.
  const std::int64_t first = visible.begin > key ? visible.begin - key : 0;
  const std::int64_t last = visible.end - key < kLanes ? visible.end - key : kLanes;
  return hn::And(hn::Ge(lanes, hn::Set(d, static_cast<float>(first))),
                 hn::Lt(lanes, hn::Set(d, static_cast<float>(last))));
}

inline bool IsWhole(std::int64_t key, const KeyRange& visible) {
  return key >= visible.begin && key + kLanes <= visible.end;
}

HWY_INLINE void StoreProbability(const NaiveSoftmaxRow& row, std::int64_t key, Floats p) {
  const FloatTag d;
  if (!row.bf16) {
    hn::Store(p, d, static_cast<float*>(row.probabilities) + key);
    return;
  }
  // Round to nearest even by hand: the library's conversion truncates.
  const hn::RebindToUnsigned<FloatTag> du;
  const hn::RebindToSigned<FloatTag> di;
  const hn::Rebind<std::uint16_t, FloatTag> d16;
  const auto bits = hn::BitCast(du, p);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFF)), odd));
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, rounded)), d16,
             static_cast<std::uint16_t*>(row.probabilities) + key);
}

inline void StoreZeros(const NaiveSoftmaxRow& row, std::int64_t begin, std::int64_t end) {
  if (end <= begin) return;
  const std::int64_t element = row.bf16 ? 2 : 4;
  std::memset(static_cast<char*>(row.probabilities) + begin * element, 0, (end - begin) * element);
}

// Scale, cap, bias, ALiBi of the vector at `key`; bias of hidden lanes is not read.
HWY_INLINE Floats Transform(const NaiveSoftmaxRow& row, std::int64_t key, Floats s) {
  const FloatTag d;
  const AttentionSequence& sequence = *row.sequence;
  s = hn::Mul(s, hn::Set(d, sequence.softmax_scale));
  if (sequence.logits_soft_cap > 0) {
    const Floats cap = hn::Set(d, sequence.logits_soft_cap);
    s = hn::Mul(cap, Tanh(hn::Div(s, cap)));
  }
  if (sequence.bias != nullptr) {
    const float* bias =
        sequence.bias + row.head * sequence.bias_head_stride + row.token * sequence.bias_row_stride;
    if (IsWhole(key, row.visible)) {
      s = hn::Add(s, hn::LoadU(d, bias + key));
    } else {
      alignas(64) float lanes[kLanes] = {};
      for (int lane = 0; lane < kLanes; ++lane) {
        if (key + lane >= row.visible.begin && key + lane < row.visible.end) {
          lanes[lane] = bias[key + lane];
        }
      }
      s = hn::Add(s, hn::Load(d, lanes));
    }
  }
  if (sequence.alibi_slopes != nullptr) {
    const auto place =
        static_cast<float>(sequence.query_position + row.token - sequence.key_position - key);
    const Floats distance = hn::Abs(hn::Sub(hn::Set(d, place), hn::Iota(d, 0.0F)));
    s = hn::NegMulAdd(hn::Set(d, sequence.alibi_slopes[row.head]), distance, s);
  }
  return s;
}

inline NaiveSoftmaxState SoftmaxRow(const NaiveSoftmaxRow& row) {
  const FloatTag d;
  const AttentionSequence& sequence = *row.sequence;
  const bool plain =
      sequence.logits_soft_cap == 0 && sequence.bias == nullptr && sequence.alibi_slopes == nullptr;
  const Floats minus_infinity = hn::Set(d, MinusInfinity());
  const Floats c = hn::Set(d, plain ? sequence.softmax_scale * kLog2E : kLog2E);
  const std::int64_t begin = row.visible.begin / kLanes * kLanes;
  const std::int64_t end = (row.visible.end + kLanes - 1) / kLanes * kLanes;
  Floats largest = minus_infinity;
  for (std::int64_t key = begin; key < end; key += kLanes) {
    Floats s = hn::Load(d, row.scores + key);
    if (!plain) {
      s = Transform(row, key, s);
      hn::Store(s, d, row.scores + key);
    }
    Floats scaled = hn::Mul(s, c);
    if (!IsWhole(key, row.visible)) {
      scaled = hn::IfThenElse(VisibleLanes(key, row.visible), scaled, minus_infinity);
    }
    largest = hn::Max(scaled, largest);
  }
  const float row_max = hn::GetLane(hn::MaxOfLanes(d, largest));
  if (row_max == MinusInfinity()) {  // nothing visible: -inf - -inf must not be formed
    StoreZeros(row, 0, row.padded_keys);
    return {row_max, 0.0F};
  }
  StoreZeros(row, 0, begin);
  const Floats max = hn::Set(d, row_max);
  // From 2^23 on, the product's own rounding exceeds 1: it must be the one that the maximum has.
  const bool huge = __builtin_fabsf(row_max) >= 0x1p23F;
  Floats sum = hn::Zero(d);
  for (std::int64_t key = begin; key < end; key += kLanes) {
    const Floats s = hn::Load(d, row.scores + key);
    Floats x = huge ? hn::Sub(hn::Mul(s, c), max) : hn::MulSub(s, c, max);
    if (!IsWhole(key, row.visible)) {
      x = hn::IfThenElse(VisibleLanes(key, row.visible), x, minus_infinity);
    }
    const Floats p = Exp2(x);
    sum = hn::Add(sum, p);
    StoreProbability(row, key, p);
  }
  StoreZeros(row, end, row.padded_keys);
  return {row_max, hn::GetLane(hn::SumOfLanes(d, sum))};
}

inline void WidenRow(const std::byte* from, DataType type, int count, float* to) {
  const FloatTag d;
  int i = 0;
  if (type == DataType::kFp16) {
    const hn::Rebind<hwy::float16_t, FloatTag> half;
    for (; i + kLanes <= count; i += kLanes) {
      const auto* elements = reinterpret_cast<const hwy::float16_t*>(from + 2 * i);
      hn::StoreU(hn::PromoteTo(d, hn::LoadU(half, elements)), d, to + i);
    }
  } else {
    const hn::Rebind<std::uint16_t, FloatTag> d16;
    const hn::RebindToUnsigned<FloatTag> du;
    for (; i + kLanes <= count; i += kLanes) {
      const auto* elements = reinterpret_cast<const std::uint16_t*>(from + 2 * i);
      const auto bits = hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, elements)));
      hn::StoreU(hn::BitCast(d, bits), d, to + i);
    }
  }
  for (; i < count; ++i) to[i] = LoadElement(from, type, i);
}

}  // namespace
}  // namespace attnd::kernels
