#include "client/half_precision.h"

#include <bit>
#include <cstddef>

namespace attnd::client {
namespace {

constexpr std::uint32_t kFloatSign = 0x8000'0000U;
constexpr std::uint32_t kFloatInfinity = 0x7F80'0000U;
// The smallest FP32 that rounds to an FP16 infinity: 65504 + half of its last place (16), and ties
// go to even, which is the infinity.
constexpr std::uint32_t kFp16Overflow = 0x477F'F000U;
constexpr std::uint32_t kFp16SmallestNormal = 0x3880'0000U;  // 2^-14

// `value` shifted right by `shift` bits, rounded to nearest, ties to even. shift: 1 to 31.
constexpr std::uint32_t ShiftRightRounded(std::uint32_t value, int shift) {
  const std::uint32_t half = 1U << (shift - 1);
  const std::uint32_t odd = (value >> shift) & 1U;
  return (value + half - 1 + odd) >> shift;
}

}  // namespace

std::uint16_t Fp16FromFloat(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits & kFloatSign) >> 16);
  const std::uint32_t magnitude = bits & ~kFloatSign;
  if (magnitude > kFloatInfinity) {
    // The payload's top bits survive; the quiet bit keeps the result a NaN whatever they are.
    return static_cast<std::uint16_t>(sign | 0x7E00U | ((magnitude >> 13) & 0x1FFU));
  }
  if (magnitude >= kFp16Overflow) return static_cast<std::uint16_t>(sign | 0x7C00U);
  if (magnitude >= kFp16SmallestNormal) {
    // Rebiasing the exponent (127 to 15) commutes with rounding: a carry moves into it.
    return static_cast<std::uint16_t>(sign |
                                      (ShiftRightRounded(magnitude, 13) - ((127U - 15U) << 10)));
  }
  const int shift = 126 - static_cast<int>(magnitude >> 23);  // to units of 2^-24
  if (shift > 25) return sign;
  const std::uint32_t mantissa = (magnitude & 0x007F'FFFFU) | 0x0080'0000U;
  return static_cast<std::uint16_t>(sign | ShiftRightRounded(mantissa, shift));
}

float FloatFromFp16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1FU;
  const std::uint32_t mantissa = bits & 0x3FFU;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | kFloatInfinity | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 127 - 15) << 23) | (mantissa << 13));
}

std::uint16_t Bf16FromFloat(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & ~kFloatSign) > kFloatInfinity)
    return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

float FloatFromBf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

void Fp16FromFloats(std::span<const float> values, std::span<std::uint16_t> bits) {
  for (std::size_t i = 0; i < values.size(); ++i) bits[i] = Fp16FromFloat(values[i]);
}

void FloatsFromFp16(std::span<const std::uint16_t> bits, std::span<float> values) {
  for (std::size_t i = 0; i < bits.size(); ++i) values[i] = FloatFromFp16(bits[i]);
}

void Bf16FromFloats(std::span<const float> values, std::span<std::uint16_t> bits) {
  for (std::size_t i = 0; i < values.size(); ++i) bits[i] = Bf16FromFloat(values[i]);
}

void FloatsFromBf16(std::span<const std::uint16_t> bits, std::span<float> values) {
  for (std::size_t i = 0; i < bits.size(); ++i) values[i] = FloatFromBf16(bits[i]);
}

}  // namespace attnd::client
