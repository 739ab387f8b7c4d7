#include "loadtest/arrival_process.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace attnd::loadtest {
namespace {

using Duration = ArrivalProcess::Duration;

TEST(ArrivalProcessTest, ConstantGapsAddUpWithoutDrift) {
  const auto arrivals = ConstantArrivals(3);
  Duration last{};
  for (int i = 0; i < 3'000'001; ++i) last = arrivals->Next();
  EXPECT_NEAR(static_cast<double>(last.count()), 1e15, 2);
}

TEST(ArrivalProcessTest, TheFirstConstantArrivalIsAtTheStart) {
  EXPECT_EQ(ConstantArrivals(10)->Next(), Duration(0));
}

TEST(ArrivalProcessTest, PoissonGapsHaveMeanAndSpreadOfAnExponential) {
  const auto arrivals = PoissonArrivals(1000, 42);
  constexpr int kCount = 200'000;
  double sum = 0;
  double sum_of_squares = 0;
  Duration last{};
  for (int i = 0; i < kCount; ++i) {
    const Duration next = arrivals->Next();
    ASSERT_GE(next, last);
    const double gap = static_cast<double>((next - last).count()) / 1e9;
    sum += gap;
    sum_of_squares += gap * gap;
    last = next;
  }
  const double mean = sum / kCount;
  const double deviation = std::sqrt(sum_of_squares / kCount - mean * mean);
  // Standard errors of mean and deviation are 1/sqrt(n) and about 1.4/sqrt(n): five of them.
  EXPECT_NEAR(mean, 1e-3, 1e-3 * 5 / std::sqrt(kCount));
  EXPECT_NEAR(deviation, 1e-3, 1e-3 * 7 / std::sqrt(kCount));
}

TEST(ArrivalProcessTest, BurstsKeepTheMeanRateInOneSecondOfFour) {
  const auto arrivals = BurstArrivals(1000, 5);
  constexpr int kCount = 38'000;
  Duration last{};
  for (int i = 0; i < kCount; ++i) {
    const Duration next = arrivals->Next();
    ASSERT_GE(next, last);
    ASSERT_LT(next % std::chrono::seconds(4), std::chrono::seconds(1));
    last = next;
  }
  // Nine bursts and a half of 4,000 each: 9.5 busy seconds, with a standard error of
  // sqrt(38000) / 4000 = 0.05. Five of them.
  EXPECT_NEAR(std::chrono::duration<double>(last).count(), 36.5, 0.25);
}

TEST(ArrivalProcessTest, TheSameSeedGivesTheSamePlan) {
  const auto a = PoissonArrivals(10, 7);
  const auto b = PoissonArrivals(10, 7);
  const auto c = PoissonArrivals(10, 8);
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    const Duration next = a->Next();
    EXPECT_EQ(next, b->Next());
    differs = differs || next != c->Next();
  }
  EXPECT_TRUE(differs);
}

TEST(ArrivalProcessTest, UnusableRatesAndKindsAreRefused) {
  for (const double rate : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_FALSE(MakeArrivals("poisson", rate, 1).ok()) << rate;
  }
  EXPECT_FALSE(MakeArrivals("bursty", 1, 1).ok());
  EXPECT_TRUE(MakeArrivals("constant", 1, 1).ok());
  EXPECT_TRUE(MakeArrivals("burst", 1, 1).ok());
}

}  // namespace
}  // namespace attnd::loadtest
