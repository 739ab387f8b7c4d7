#include "server/status_history.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace attnd {
namespace {

using std::chrono::seconds;

// Readings two seconds apart, from a start that is not 0.
class StatusHistoryTest : public ::testing::Test {
 protected:
  void Record(const StatusTotals& totals) {
    time_ += StatusHistory::kPeriod;
    unix_ += 2;
    history_.Record(totals, time_, unix_);
  }
  static StatusTotals WithKernel(double launches) {
    StatusTotals totals;
    totals.kernels.push_back(
        {"cpu/a", "cpu:0", launches, launches * 0.5, launches * 100, launches * 1000});
    return totals;
  }

  Clock::TimePoint time_{seconds(1000)};
  double unix_ = 5000;
  StatusHistory history_;
};

TEST_F(StatusHistoryTest, TakesTheFirstReadingAsTheStart) {
  Record(WithKernel(10));
  EXPECT_TRUE(history_.Samples().empty());
  Record(WithKernel(13));
  const auto samples = history_.Samples();
  ASSERT_EQ(samples.size(), 1U);
  ASSERT_EQ(samples[0].kernels.size(), 1U);
  EXPECT_EQ(samples[0].kernels[0].launches, 3);
  EXPECT_EQ(samples[0].kernels[0].hbm_bytes, 300);
  EXPECT_EQ(samples[0].period_seconds, 2);
  EXPECT_EQ(samples[0].unix_seconds, 5004);
}

TEST_F(StatusHistoryTest, LeavesOutAKernelThatDidNotRun) {
  Record(WithKernel(10));
  Record(WithKernel(10));
  EXPECT_TRUE(history_.Samples()[0].kernels.empty());
}

TEST_F(StatusHistoryTest, CountsAKernelThatAppears) {
  Record({});
  Record(WithKernel(2));
  EXPECT_EQ(history_.Samples()[0].kernels[0].launches, 2);
}

TEST_F(StatusHistoryTest, TellsPercentilesOfThePeriodAlone) {
  StatusTotals totals;
  Distribution& decode = totals.latency["Decode"];
  decode.bounds = {0.001, 0.1};
  decode.counts = {0, 1000, 0};
  Record(totals);
  decode.counts = {100, 1000, 0};
  totals.answers_by_code["OK"] = 100;
  Record(totals);
  Record(totals);
  const auto samples = history_.Samples();
  EXPECT_EQ(samples[0].latency.at("Decode").answers, 100);
  EXPECT_EQ(samples[0].latency.at("Decode").p99_seconds, 0.001);
  EXPECT_EQ(samples[0].answers, 100);
  EXPECT_TRUE(samples[1].latency.empty());
}

TEST_F(StatusHistoryTest, KeepsTheStateAtTheEndOfThePeriod) {
  StatusTotals totals;
  Record(totals);
  totals.gauges["queue_depth"] = 3;
  totals.sequences_by_state = {{"active", 1}, {"idle", 4}};
  totals.cache_bytes_by_state["used"] = 77;
  Record(totals);
  const StatusSample sample = history_.Samples()[0];
  EXPECT_EQ(sample.queue_depth, 3);
  EXPECT_EQ(sample.sequences, 5);
  EXPECT_EQ(sample.cache_bytes_used, 77);
}

TEST_F(StatusHistoryTest, ForgetsTheOldestSample) {
  for (std::size_t i = 0; i < StatusHistory::kMaxSamples + 10; ++i) Record({});
  const auto samples = history_.Samples();
  EXPECT_EQ(samples.size(), StatusHistory::kMaxSamples);
  EXPECT_EQ(samples.back().unix_seconds, unix_);
}

TEST_F(StatusHistoryTest, AWindowHoldsTheLastTenSecondsOfAKernel) {
  Record(WithKernel(0));
  for (int i = 1; i <= 8; ++i) Record(WithKernel(i));
  const double last_run = unix_;
  for (int i = 0; i < 20; ++i) Record(WithKernel(8));  // idle: the window stays
  const auto windows = LastKernelWindows(history_.Samples());
  ASSERT_EQ(windows.size(), 1U);
  EXPECT_EQ(windows[0].totals.launches, 5);
  EXPECT_EQ(windows[0].totals.busy_seconds, 2.5);
  EXPECT_EQ(windows[0].last_unix_seconds, last_run);
}

TEST_F(StatusHistoryTest, AWindowIsOfEachKernelAlone) {
  StatusTotals totals = WithKernel(1);
  Record({});
  Record(totals);
  totals.kernels.insert(totals.kernels.begin(), {"cpu/0", "cpu:0", 4, 1, 1, 1});
  Record(totals);
  const auto windows = LastKernelWindows(history_.Samples());
  ASSERT_EQ(windows.size(), 2U);
  EXPECT_EQ(windows[0].totals.kernel, "cpu/0");
  EXPECT_EQ(windows[1].totals.launches, 1);
  EXPECT_LT(windows[1].last_unix_seconds, windows[0].last_unix_seconds);
}

}  // namespace
}  // namespace attnd
