// Scalar conversions between FP32 and the 16-bit types, round to nearest even.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/attention_params.h"

namespace attnd::kernels {

struct Bf16 {
  std::uint16_t bits;
};
struct Fp16 {
  std::uint16_t bits;
};

inline float ToFloat(float value) { return value; }

inline float ToFloat(Bf16 value) { return std::bit_cast<float>(std::uint32_t{value.bits} << 16U); }

inline float ToFloat(Fp16 value) {
  const std::uint32_t sign = (value.bits & 0x8000U) << 16U;
  const std::uint32_t exponent = (value.bits >> 10U) & 0x1FU;
  const std::uint32_t mantissa = value.bits & 0x3FFU;
  if (exponent == 0x1FU) {
    return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13U));
  }
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in FP32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23U) | (mantissa << 13U));
}

inline void FromFloat(float value, float& out) { out = value; }

inline void FromFloat(float value, Bf16& out) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) {  // keep it a quiet NaN: rounding could carry into infinity
    out.bits = static_cast<std::uint16_t>((bits >> 16U) | 0x40U);
    return;
  }
  out.bits = static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
}

inline void FromFloat(float value, Fp16& out) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16U) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {
    out.bits = static_cast<std::uint16_t>(sign | 0x7E00U | ((magnitude >> 13U) & 0x1FFU));
  } else if (magnitude >= 0x477FF000U) {  // 65520 and above round to infinity
    out.bits = static_cast<std::uint16_t>(sign | 0x7C00U);
  } else if (magnitude < 0x38800000U) {  // below 2^-14: subnormal, in units of 2^-24
    // Adding 0.5 puts the unit in the last place of the FP32 sum at 2^-24: the addition rounds.
    const float sum = std::bit_cast<float>(magnitude) + 0.5F;
    out.bits = static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(sum) - 0x3F000000U));
  } else {
    const std::uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13U) & 1U);
    out.bits = static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13U));
  }
}

// Element `index` of an array of `type` (FP32, FP16 or BF16).
inline float LoadElement(const void* data, DataType type, std::int64_t index) {
  switch (type) {
    case DataType::kFp32:
      return static_cast<const float*>(data)[index];
    case DataType::kFp16:
      return ToFloat(static_cast<const Fp16*>(data)[index]);
    case DataType::kBf16:
      return ToFloat(static_cast<const Bf16*>(data)[index]);
    default:
      return std::numeric_limits<float>::quiet_NaN();
  }
}

inline void StoreElement(void* data, DataType type, std::int64_t index, float value) {
  switch (type) {
    case DataType::kFp32:
      static_cast<float*>(data)[index] = value;
      return;
    case DataType::kFp16:
      FromFloat(value, static_cast<Fp16*>(data)[index]);
      return;
    case DataType::kBf16:
      FromFloat(value, static_cast<Bf16*>(data)[index]);
      return;
    default:
      return;
  }
}

}  // namespace attnd::kernels
