// Vectors of FP32 and the two functions that attention needs of them, in Highway. Included by files
// that are compiled for one SIMD target each; all names are local to the including file, so that
// the linker cannot merge one target's code into another's.
#pragma once

#define HWY_COMPILE_ONLY_STATIC
#include <hwy/highway.h>

namespace attnd::kernels {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::ScalableTag<float>;
using Floats = hn::Vec<FloatTag>;
constexpr int kLanes = HWY_MAX_BYTES / static_cast<int>(sizeof(float));
constexpr float kLog2E = 1.44269504088896340736F;

inline float MinusInfinity() { return -__builtin_inff(); }

// 2^x for x <= about 1: degree 6 on [-0.5, 0.5], relative error 5e-9, far below FP32 rounding.
// Below 2^-126 the result is 0; NaN stays NaN.
HWY_INLINE Floats Exp2(Floats x) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const Floats lowest = hn::Set(d, -127.0F);
  const Floats clamped = hn::Max(lowest, x);  // the second operand is returned when it is NaN
  const auto exponent = hn::NearestInt(clamped);
  const Floats f = hn::Sub(clamped, hn::ConvertTo(d, exponent));
  Floats p = hn::Set(d, 1.545316294e-04F);
  p = hn::MulAdd(p, f, hn::Set(d, 1.339086336e-03F));
  p = hn::MulAdd(p, f, hn::Set(d, 9.618082557e-03F));
  p = hn::MulAdd(p, f, hn::Set(d, 5.550357114e-02F));
  p = hn::MulAdd(p, f, hn::Set(d, 2.402265076e-01F));
  p = hn::MulAdd(p, f, hn::Set(d, 6.931471880e-01F));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0F));
  const Floats scaled = hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(exponent)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -126.0F)), scaled);
}

// tanh, absolute error below 1.2e-7 and relative error below 5e-7 near 0.
HWY_INLINE Floats Tanh(Floats x) {
  const FloatTag d;
  const Floats bounded = hn::Max(hn::Set(d, -20.0F), hn::Min(hn::Set(d, 20.0F), x));
  const Floats power = Exp2(hn::Mul(bounded, hn::Set(d, 2 * kLog2E)));
  const Floats one = hn::Set(d, 1.0F);
  const Floats far = hn::Sub(one, hn::Div(hn::Set(d, 2.0F), hn::Add(power, one)));
  const Floats square = hn::Mul(x, x);
  // x - x^3/3 + 2x^5/15 - 17x^7/315 + 62x^9/2835: the next term is below 2e-8 x at |x| = 0.3.
  Floats near = hn::Set(d, 62.0F / 2835.0F);
  near = hn::MulAdd(near, square, hn::Set(d, -17.0F / 315.0F));
  near = hn::MulAdd(near, square, hn::Set(d, 2.0F / 15.0F));
  near = hn::MulAdd(near, square, hn::Set(d, -1.0F / 3.0F));
  near = hn::MulAdd(hn::Mul(near, square), x, x);
  return hn::IfThenElse(hn::Lt(hn::Abs(x), hn::Set(d, 0.3F)), near, far);
}

}  // namespace
}  // namespace attnd::kernels
