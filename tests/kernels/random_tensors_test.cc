#include "tests/support/random_tensors.h"

#include <gtest/gtest.h>

namespace attnd {
namespace {

TEST(RandomTensorsTest, GivesThePublishedNumbers) {
  SplitMix64 raw(1001);
  EXPECT_EQ(raw.Next(), 0x533e00f7f3c606d4ULL);
  EXPECT_EQ(raw.Next(), 0x3ac55a494710ce58ULL);
  EXPECT_EQ(raw.Next(), 0x3a74aa7bc6beafb1ULL);
  const std::vector<float> values = RandomValues(1001, 4, 1);
  EXPECT_FLOAT_EQ(values[0], -0.349670410F);
  EXPECT_FLOAT_EQ(values[1], -0.540852308F);
  EXPECT_FLOAT_EQ(values[2], -0.543314695F);
  EXPECT_FLOAT_EQ(values[3], -0.032027483F);
}

}  // namespace
}  // namespace attnd
