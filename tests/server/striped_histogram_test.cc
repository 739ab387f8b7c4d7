#include "server/striped_histogram.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace attnd {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The linear interpolation of PromQL's histogram_quantile.
double Quantile(const prometheus::ClientMetric::Histogram& histogram, double quantile) {
  const double rank = quantile * static_cast<double>(histogram.sample_count);
  double lower_bound = 0;
  double lower_count = 0;
  for (const auto& bucket : histogram.bucket) {
    const auto count = static_cast<double>(bucket.cumulative_count);
    if (count >= rank) {
      return lower_bound +
             (bucket.upper_bound - lower_bound) * (rank - lower_count) / (count - lower_count);
    }
    lower_bound = bucket.upper_bound;
    lower_count = count;
  }
  return kInfinity;
}

int BucketOf(std::span<const double> bounds, double value) {
  StripedHistogram histogram(bounds);
  EXPECT_TRUE(histogram.Observe(value));
  const auto collected = histogram.Collect();
  int index = 0;
  while (collected.bucket[static_cast<std::size_t>(index)].cumulative_count == 0) ++index;
  return index;
}

TEST(StripedHistogramTest, SpreadsRealRequestDurationsOverDifferentFiniteBuckets) {
  std::set<int> buckets;
  for (const double seconds : {0.0002, 0.0009, 0.003, 0.02, 0.25, 4.0, 45.0, 300.0}) {
    const int bucket = BucketOf(RequestDurationBounds(), seconds);
    EXPECT_LT(bucket, static_cast<int>(RequestDurationBounds().size())) << seconds;
    EXPECT_TRUE(buckets.insert(bucket).second) << seconds;
  }
}

TEST(StripedHistogramTest, BoundsAscendWithoutInfinity) {
  for (const auto bounds : {RequestDurationBounds(), KernelDurationBounds(), BatchSequenceBounds(),
                            BatchTokenBounds()}) {
    double last = 0;
    for (const double bound : bounds) {
      EXPECT_GT(bound, last);
      EXPECT_TRUE(std::isfinite(bound));
      last = bound;
    }
  }
}

TEST(StripedHistogramTest, TellsKernelsOfFewMicrosecondsApart) {
  EXPECT_NE(BucketOf(KernelDurationBounds(), 5e-6), BucketOf(KernelDurationBounds(), 7e-6));
  EXPECT_NE(BucketOf(KernelDurationBounds(), 7e-6), BucketOf(KernelDurationBounds(), 12e-6));
}

TEST(StripedHistogramTest, InterpolatedQuantilesAreWithinOneAndAHalf) {
  std::mt19937_64 random(7);
  for (const double typical_seconds : {0.0002, 0.001, 0.004, 0.05}) {
    std::lognormal_distribution<double> distribution(std::log(typical_seconds), 0.2);
    StripedHistogram histogram(RequestDurationBounds());
    std::vector<double> samples;
    for (int i = 0; i < 1000; ++i) {
      samples.push_back(distribution(random));
      ASSERT_TRUE(histogram.Observe(samples.back()));
    }
    std::sort(samples.begin(), samples.end());
    const auto collected = histogram.Collect();
    for (const double quantile : {0.5, 0.99}) {
      const double exact = samples[static_cast<std::size_t>(quantile * 1000)];
      const double ratio = Quantile(collected, quantile) / exact;
      EXPECT_LT(ratio, 1.5) << typical_seconds << " p" << quantile;
      EXPECT_GT(ratio, 1 / 1.5) << typical_seconds << " p" << quantile;
    }
  }
}

// The worst distribution for interpolation: every sample is the same value.
TEST(StripedHistogramTest, QuantilesOfAConstantAreWithinOneAndAHalfAtEveryPlace) {
  for (double seconds = 0.0001; seconds < 0.9; seconds *= 1.07) {
    StripedHistogram histogram(RequestDurationBounds());
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(histogram.Observe(seconds));
    for (const double quantile : {0.5, 0.99}) {
      const double ratio = Quantile(histogram.Collect(), quantile) / seconds;
      EXPECT_LE(ratio, 1.5 + 1e-9) << seconds;
      EXPECT_GE(ratio, 1 / 1.5 - 1e-9) << seconds;
    }
  }
}

TEST(StripedHistogramTest, BoundBelongsToItsBucket) {
  StripedHistogram histogram(RequestDurationBounds());
  for (const double bound : RequestDurationBounds()) ASSERT_TRUE(histogram.Observe(bound));
  const auto collected = histogram.Collect();
  for (std::size_t i = 0; i < collected.bucket.size() - 1; ++i) {
    EXPECT_EQ(collected.bucket[i].cumulative_count, i + 1);
  }
  EXPECT_EQ(collected.bucket.back().cumulative_count, RequestDurationBounds().size());
}

TEST(StripedHistogramTest, CountsValuesAboveTheLastBoundInTheInfiniteBucketOnly) {
  StripedHistogram histogram(RequestDurationBounds());
  ASSERT_TRUE(histogram.Observe(1e6));
  ASSERT_TRUE(histogram.Observe(0));
  const auto collected = histogram.Collect();
  EXPECT_EQ(collected.bucket.back().upper_bound, kInfinity);
  EXPECT_EQ(collected.bucket.front().cumulative_count, 1u);
  EXPECT_EQ(collected.bucket[collected.bucket.size() - 2].cumulative_count, 1u);
  EXPECT_EQ(collected.bucket.back().cumulative_count, 2u);
  EXPECT_EQ(collected.sample_count, 2u);
  EXPECT_EQ(collected.sample_sum, 1e6);
}

TEST(StripedHistogramTest, RefusesNegativeAndNonFiniteValues) {
  StripedHistogram histogram(RequestDurationBounds());
  for (const double value : {-1.0, -1e-300, std::nan(""), kInfinity, -kInfinity}) {
    EXPECT_FALSE(histogram.Observe(value)) << value;
  }
  const auto collected = histogram.Collect();
  EXPECT_EQ(collected.sample_count, 0u);
  EXPECT_EQ(collected.sample_sum, 0);
}

TEST(StripedHistogramTest, LosesNothingWithMoreThreadsThanStripes) {
  constexpr int kThreads = StripedCounters::kStripes + 3;
  constexpr int kObservations = 5000;
  StripedHistogram histogram(BatchSequenceBounds());
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&histogram] {
      for (int i = 0; i < kObservations; ++i) histogram.Observe(1 + i % 4);
    });
  }
  std::uint64_t last_count = 0;
  for (int scrape = 0; scrape < 100; ++scrape) {
    const auto collected = histogram.Collect();
    EXPECT_GE(collected.sample_count, last_count);
    EXPECT_EQ(collected.sample_count, collected.bucket.back().cumulative_count);
    last_count = collected.sample_count;
  }
  for (std::thread& thread : threads) thread.join();
  const auto collected = histogram.Collect();
  EXPECT_EQ(collected.sample_count, std::uint64_t{kThreads} * kObservations);
  EXPECT_EQ(collected.sample_sum, 2.5 * kThreads * kObservations);
  EXPECT_EQ(collected.bucket[0].cumulative_count, std::uint64_t{kThreads} * kObservations / 4);
}

}  // namespace
}  // namespace attnd
