#include "loadtest/comparison.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace attnd::loadtest {
namespace {

TEST(ComparisonTest, MediansOfOddEvenAndNoValues) {
  EXPECT_EQ(Median(std::vector<double>{3, 1, 2}), 2);
  EXPECT_EQ(Median(std::vector<double>{4, 1, 2, 3}), 2.5);
  EXPECT_EQ(Median(std::vector<double>{}), 0);
}

// A drift that slows both sides alike leaves the ratio of each pair alone.
TEST(ComparisonTest, PairsCancelWhatSlowsBothSides) {
  std::vector<double> fused;
  std::vector<double> naive;
  for (int block = 0; block < 9; ++block) {
    const double drift = 1.0 / (1 + block);
    naive.push_back(100 * drift);
    fused.push_back(250 * drift);
  }
  const Interval ratio = PairedRatio(fused, naive, 1);
  EXPECT_NEAR(ratio.median, 2.5, 1e-12);
  EXPECT_NEAR(ratio.low, 2.5, 1e-12);
  EXPECT_NEAR(ratio.high, 2.5, 1e-12);
}

// Coverage: of 300 experiments whose true median ratio is 2, about 95 % of the intervals hold it.
TEST(ComparisonTest, TheIntervalHoldsTheTrueRatioAboutNineteenTimesInTwenty) {
  std::mt19937_64 random(3);
  std::lognormal_distribution<double> noise(0, 0.2);
  int held = 0;
  constexpr int kExperiments = 300;
  for (int experiment = 0; experiment < kExperiments; ++experiment) {
    std::vector<double> numerator;
    std::vector<double> denominator;
    for (int block = 0; block < 15; ++block) {
      numerator.push_back(2 * noise(random));
      denominator.push_back(noise(random));
    }
    const Interval ratio =
        PairedRatio(numerator, denominator, static_cast<std::uint64_t>(experiment));
    EXPECT_LE(ratio.low, ratio.median);
    EXPECT_LE(ratio.median, ratio.high);
    held += ratio.low <= 2 && 2 <= ratio.high ? 1 : 0;
  }
  // The percentile bootstrap of a median over 15 values is a little narrow: 0.88 to 0.99 allowed.
  EXPECT_GT(held, kExperiments * 88 / 100);
  EXPECT_LT(held, kExperiments * 99 / 100);
}

TEST(ComparisonTest, BlocksWithoutADenominatorAreLeftOut) {
  const Interval ratio = PairedRatio(std::vector<double>{1, 6}, std::vector<double>{0, 2}, 1);
  EXPECT_EQ(ratio.median, 3);
  EXPECT_EQ(PairedRatio(std::vector<double>{1}, std::vector<double>{0}, 1).median, 0);
}

// A side of which every request failed.
TEST(ComparisonTest, OnlyBlocksThatBothSidesHaveAreCompared) {
  EXPECT_EQ(PairedRatio(std::vector<double>{1, 6}, {}, 1).median, 0);
  EXPECT_EQ(PairedRatio({}, std::vector<double>{1, 6}, 1).median, 0);
  EXPECT_EQ(PairedRatio(std::vector<double>{6, 1, 1}, std::vector<double>{2}, 1).median, 3);
}

}  // namespace
}  // namespace attnd::loadtest
