// Oracles: exact powers of two by ldexp, and for rounding the two neighbours found by search.
#include "client/half_precision.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace attnd::client {
namespace {

// The value of finite FP16 bits by definition.
double ExactFp16(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1F;
  const int mantissa = bits & 0x3FF;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(HalfPrecisionTest, WideningIsExactForEveryFp16) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = FloatFromFp16(half);
    if ((bits & 0x7C00) == 0x7C00) {
      EXPECT_EQ(std::isnan(value), (bits & 0x3FF) != 0) << bits;
      if (!std::isnan(value)) {
        EXPECT_TRUE(std::isinf(value)) << bits;
      }
      continue;
    }
    ASSERT_EQ(static_cast<double>(value), ExactFp16(half)) << bits;
  }
}

TEST(HalfPrecisionTest, NarrowingUndoesWideningForEveryFp16) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const float value = FloatFromFp16(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(FloatFromFp16(Fp16FromFloat(value)))) << bits;
    } else {
      ASSERT_EQ(Fp16FromFloat(value), bits);
    }
  }
}

TEST(HalfPrecisionTest, NarrowingUndoesWideningForEveryBf16) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const float value = FloatFromBf16(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(FloatFromBf16(Bf16FromFloat(value)))) << bits;
    } else {
      ASSERT_EQ(Bf16FromFloat(value), bits);
    }
  }
}

// Between neighbours of the narrow type: below the middle down, above it up, at the middle to even.
TEST(HalfPrecisionTest, Fp16RoundsToNearestAndTiesToEven) {
  for (int bits = 0; bits < 0x7BFF; ++bits) {
    const double low = ExactFp16(static_cast<std::uint16_t>(bits));
    const double high = ExactFp16(static_cast<std::uint16_t>(bits + 1));
    const auto middle = static_cast<float>((low + high) / 2);  // exact: FP32 has the bits
    const int even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(Fp16FromFloat(middle), even) << bits;
    ASSERT_EQ(Fp16FromFloat(std::nextafter(middle, 0.0F)), bits) << bits;
    ASSERT_EQ(Fp16FromFloat(std::nextafter(middle, 1e9F)), bits + 1) << bits;
    ASSERT_EQ(Fp16FromFloat(-middle), even | 0x8000) << bits;
  }
}

TEST(HalfPrecisionTest, Bf16RoundsToNearestAndTiesToEven) {
  std::mt19937 random(7);
  for (int i = 0; i < 100'000; ++i) {
    const auto bits = static_cast<std::uint16_t>(random() % 0x7F7F);
    const float middle = std::bit_cast<float>((static_cast<std::uint32_t>(bits) << 16) | 0x8000U);
    ASSERT_EQ(Bf16FromFloat(middle), bits % 2 == 0 ? bits : bits + 1) << bits;
    ASSERT_EQ(Bf16FromFloat(std::nextafter(middle, 0.0F)), bits) << bits;
    ASSERT_EQ(Bf16FromFloat(std::nextafter(middle, std::numeric_limits<float>::infinity())),
              bits + 1);
  }
}

TEST(HalfPrecisionTest, ValuesBeyondTheRangeBecomeInfinities) {
  EXPECT_EQ(Fp16FromFloat(65519.996F), 0x7BFF);
  EXPECT_EQ(Fp16FromFloat(65520.0F), 0x7C00);
  EXPECT_EQ(Fp16FromFloat(-1e30F), 0xFC00);
  EXPECT_EQ(Fp16FromFloat(std::numeric_limits<float>::infinity()), 0x7C00);
  EXPECT_EQ(Bf16FromFloat(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(Bf16FromFloat(-std::numeric_limits<float>::infinity()), 0xFF80);
}

TEST(HalfPrecisionTest, NanWithOnlyLowPayloadBitsStaysNan) {
  const float nan = std::bit_cast<float>(0x7F80'0001U);
  EXPECT_TRUE(std::isnan(FloatFromFp16(Fp16FromFloat(nan))));
  EXPECT_TRUE(std::isnan(FloatFromBf16(Bf16FromFloat(nan))));
}

TEST(HalfPrecisionTest, ArraysConvertLikeSingleValues) {
  const std::vector<float> values{0.0F, -0.0F, 1.5F, 3.14159F, 1e-7F, -65504.0F};
  std::vector<std::uint16_t> bits(values.size());
  std::vector<float> back(values.size());
  Fp16FromFloats(values, bits);
  FloatsFromFp16(bits, back);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(back[i], FloatFromFp16(Fp16FromFloat(values[i])));
  }
  Bf16FromFloats(values, bits);
  FloatsFromBf16(bits, back);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(back[i], FloatFromBf16(Bf16FromFloat(values[i])));
  }
}

}  // namespace
}  // namespace attnd::client
