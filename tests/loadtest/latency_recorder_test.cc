// Percentiles against exact order statistics of the same values.
#include "loadtest/latency_recorder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace attnd::loadtest {
namespace {

using Duration = LatencyRecorder::Duration;

constexpr double kQuantiles[] = {0, 0.001, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1};

std::int64_t Exact(std::vector<std::int64_t> values, double quantile) {
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<std::size_t>(
      std::max(1.0, std::ceil(quantile * static_cast<double>(values.size()))));
  return values[rank - 1];
}

void ExpectQuantiles(const LatencyRecorder& recorder, const std::vector<std::int64_t>& values) {
  for (const double quantile : kQuantiles) {
    const std::int64_t exact = Exact(values, quantile);
    // Half a bin, and a bin is at most 1/128 of its value.
    EXPECT_NEAR(static_cast<double>(recorder.Percentile(quantile).count()),
                static_cast<double>(exact), static_cast<double>(exact) / 256 + 0.5)
        << quantile;
  }
}

TEST(LatencyRecorderTest, PercentilesFollowExactQuantilesOverNineDecades) {
  std::mt19937_64 random(1);
  for (const double spread : {0.1, 1.0, 4.0}) {
    std::lognormal_distribution<double> latency(11, spread);
    LatencyRecorder recorder;
    std::vector<std::int64_t> values;
    for (int i = 0; i < 50'000; ++i) {
      values.push_back(static_cast<std::int64_t>(latency(random)));
      recorder.Record(Duration(values.back()));
    }
    ExpectQuantiles(recorder, values);
  }
}

TEST(LatencyRecorderTest, SmallValuesAreExact) {
  LatencyRecorder recorder;
  for (int i = 0; i <= 255; ++i) recorder.Record(Duration(i));
  for (int i = 1; i <= 256; ++i) EXPECT_EQ(recorder.Percentile(i / 256.0).count(), i - 1);
}

TEST(LatencyRecorderTest, ExtremesAreExactAndWithinBounds) {
  LatencyRecorder recorder;
  for (const std::int64_t value :
       {std::int64_t{12'345}, std::int64_t{1} << 40, (std::int64_t{1} << 62) + 12345,
        std::numeric_limits<std::int64_t>::max() / 2}) {
    LatencyRecorder one;
    one.Record(Duration(value));
    EXPECT_EQ(one.Percentile(0).count(), value);
    EXPECT_EQ(one.Percentile(0.5).count(), value);
    EXPECT_EQ(one.max().count(), value);
    EXPECT_EQ(one.mean().count(), value);
  }
  recorder.Record(Duration(std::numeric_limits<std::int64_t>::max()));
  recorder.Record(Duration(-5));
  EXPECT_EQ(recorder.min().count(), 0);
  EXPECT_EQ(recorder.max().count(), std::numeric_limits<std::int64_t>::max());
}

TEST(LatencyRecorderTest, MergingEqualsRecordingEverythingInOne) {
  std::mt19937_64 random(2);
  LatencyRecorder together;
  LatencyRecorder merged;
  for (int part = 0; part < 4; ++part) {
    LatencyRecorder own;
    for (int i = 0; i < 1000 * part; ++i) {
      const Duration value(static_cast<std::int64_t>(random() % 1'000'000'000));
      own.Record(value);
      together.Record(value);
    }
    merged.Merge(own);
  }
  EXPECT_EQ(merged.count(), together.count());
  EXPECT_EQ(merged.min(), together.min());
  EXPECT_EQ(merged.max(), together.max());
  EXPECT_EQ(merged.mean(), together.mean());
  for (const double quantile : kQuantiles) {
    EXPECT_EQ(merged.Percentile(quantile), together.Percentile(quantile));
  }
}

TEST(LatencyRecorderTest, CountsUpToALimit) {
  LatencyRecorder recorder;
  for (int i = 1; i <= 100; ++i) recorder.Record(Duration(i));
  EXPECT_EQ(recorder.CountUpTo(Duration(40)), 40);
  EXPECT_EQ(recorder.CountUpTo(Duration(1'000'000)), 100);
  EXPECT_EQ(recorder.CountUpTo(Duration(-1)), 0);
}

TEST(LatencyRecorderTest, AnEmptyRecorderIsZero) {
  const LatencyRecorder recorder;
  EXPECT_EQ(recorder.Percentile(0.5).count(), 0);
  EXPECT_EQ(recorder.mean().count(), 0);
  EXPECT_EQ(recorder.min().count(), 0);
}

TEST(LatencyRecorderTest, AStateMakesTheSameRecorder) {
  LatencyRecorder recorder;
  for (int i = 0; i < 5000; ++i) recorder.Record(LatencyRecorder::Duration(i * i));
  const LatencyRecorder copy(recorder.state());
  EXPECT_EQ(copy.count(), 5000);
  EXPECT_EQ(copy.min(), recorder.min());
  EXPECT_EQ(copy.max(), recorder.max());
  EXPECT_EQ(copy.mean(), recorder.mean());
  EXPECT_EQ(copy.Percentile(0.9), recorder.Percentile(0.9));
  const LatencyRecorder wrong(LatencyRecorder::State{1, 5, 5, 5, {{std::size_t{1} << 40, 1}}});
  EXPECT_EQ(wrong.Percentile(0.5).count(), 5);
}

}  // namespace
}  // namespace attnd::loadtest
