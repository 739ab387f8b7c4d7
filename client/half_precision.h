// FP32 from and to the 16-bit types of the wire. Narrowing rounds to nearest, ties to even; NaN
// stays NaN (quiet), values beyond the range become infinities, FP16 subnormals are exact.
#pragma once

#include <cstdint>
#include <span>

namespace attnd::client {

std::uint16_t Fp16FromFloat(float value);
float FloatFromFp16(std::uint16_t bits);
std::uint16_t Bf16FromFloat(float value);
float FloatFromBf16(std::uint16_t bits);

// Elementwise; both spans have the same size.
void Fp16FromFloats(std::span<const float> values, std::span<std::uint16_t> bits);
void FloatsFromFp16(std::span<const std::uint16_t> bits, std::span<float> values);
void Bf16FromFloats(std::span<const float> values, std::span<std::uint16_t> bits);
void FloatsFromBf16(std::span<const std::uint16_t> bits, std::span<float> values);

}  // namespace attnd::client
