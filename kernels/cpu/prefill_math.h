// exp2 and tanh of the prefill tile, in vectors of one Highway static target.
#pragma once

#include <hwy/highway.h>

#include <cstdint>

namespace attnd::kernels {

namespace hn = hwy::HWY_NAMESPACE;

template <class Target>
class PrefillMath {
 public:
  static constexpr hn::ScalableTag<float> kF32{};
  using F32 = hn::Vec<decltype(kF32)>;

  // 2^fraction for |fraction| <= 1/2 by the minimax polynomial of kDegree with p(0) = 1. Relative
  // error 2.8e-6 (degree 4), 9.1e-8 (5), 2e-9 before rounding (6).
  template <int kDegree>
  static HWY_INLINE F32 Exp2Fraction(F32 fraction) {
    static_assert(kDegree >= 4 && kDegree <= 6);
    const auto at = [](float c) { return hn::Set(kF32, c); };
    if constexpr (kDegree == 4) {
      F32 p = hn::MulAdd(at(0x1.3a02ccp-7F), fraction, at(0x1.c9fc46p-5F));
      p = hn::MulAdd(p, fraction, at(0x1.ec0378p-3F));
      p = hn::MulAdd(p, fraction, at(0x1.62e12cp-1F));
      return hn::MulAdd(p, fraction, at(1.0F));
    } else if constexpr (kDegree == 5) {
      F32 p = hn::MulAdd(at(0x1.5bba14p-10F), fraction, at(0x1.3cea88p-7F));
      p = hn::MulAdd(p, fraction, at(0x1.c6b752p-5F));
      p = hn::MulAdd(p, fraction, at(0x1.ebf9bcp-3F));
      p = hn::MulAdd(p, fraction, at(0x1.62e42ap-1F));
      return hn::MulAdd(p, fraction, at(1.0F));
    } else {
      F32 p = hn::MulAdd(at(0x1.41fbbcp-13F), fraction, at(0x1.5f3e54p-10F));
      p = hn::MulAdd(p, fraction, at(0x1.3b2d4cp-7F));
      p = hn::MulAdd(p, fraction, at(0x1.c6aee8p-5F));
      p = hn::MulAdd(p, fraction, at(0x1.ebfbdcp-3F));
      p = hn::MulAdd(p, fraction, at(0x1.62e430p-1F));
      return hn::MulAdd(p, fraction, at(1.0F));
    }
  }

  // 2^x for x < 128. -inf gives exactly 0 (the clamp makes the exponent's addition end at zero
  // bits), 0 exactly 1, NaN NaN.
  template <int kDegree>
  static HWY_INLINE F32 Exp2ByShift(F32 x) {
    constexpr hn::RebindToSigned<decltype(kF32)> kI32;
    const F32 lowest = hn::Set(kF32, -127.0F);
    x = hn::IfThenElse(hn::Lt(x, lowest), lowest, x);  // a maximum may drop a NaN
    const F32 whole = hn::Round(x);
    const F32 p = Exp2Fraction<kDegree>(hn::Sub(x, whole));
    const auto exponent = hn::ShiftLeft<23>(hn::ConvertTo(kI32, whole));
    return hn::BitCast(kF32, hn::Add(hn::BitCast(kI32, p), exponent));
  }

  // 1 - 2 / (e^2x + 1) with a full-precision quotient; near 0, where that cancels, the Taylor
  // polynomial (its first omitted term is below 6e-8 of x at 0.3).
  static F32 Tanh(F32 x) {
    const F32 limit = hn::Set(kF32, 30.0F);  // tanh is 1 in FP32 from 9.1 on
    const F32 clamped = hn::IfThenElse(hn::Gt(x, limit), limit, x);
    const F32 power = Exp2ByShift<6>(hn::Mul(clamped, hn::Set(kF32, 2.885390081777927F)));
    const F32 one = hn::Set(kF32, 1.0F);
    const F32 far = hn::Sub(one, hn::Div(hn::Set(kF32, 2.0F), hn::Add(power, one)));
    const F32 square = hn::Mul(x, x);
    F32 near = hn::MulAdd(square, hn::Set(kF32, 62.0F / 2835), hn::Set(kF32, -17.0F / 315));
    near = hn::MulAdd(near, square, hn::Set(kF32, 2.0F / 15));
    near = hn::MulAdd(near, square, hn::Set(kF32, -1.0F / 3));
    near = hn::MulAdd(hn::Mul(near, square), x, x);
    return hn::IfThenElse(hn::Lt(hn::Abs(x), hn::Set(kF32, 0.3F)), near, far);
  }
};

}  // namespace attnd::kernels
