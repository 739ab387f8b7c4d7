#include "loadtest/worker_processes.h"

#include <gtest/gtest.h>

namespace attnd::loadtest {
namespace {

using std::chrono::microseconds;

TEST(WorkerProcessesTest, SharesAddUp) {
  CommonOptions common;
  LoadOptions load;
  load.processes = 3;
  load.scenario.workers = 16;
  load.max_in_flight = 256;
  load.rate = 1000;
  load.max_requests = 100;
  int workers = 0;
  int in_flight = 0;
  double rate = 0;
  std::int64_t requests = 0;
  std::set<std::uint64_t> seeds;
  for (int worker = 0; worker < load.processes; ++worker) {
    const WorkerShare share = ShareOf(common, load, worker);
    EXPECT_GE(share.workers, 5);
    workers += share.workers;
    in_flight += share.max_in_flight;
    rate += share.rate;
    requests += share.max_requests;
    seeds.insert(share.seed);
  }
  EXPECT_EQ(workers, 16);
  EXPECT_EQ(in_flight, 256);
  EXPECT_DOUBLE_EQ(rate, 1000);
  EXPECT_EQ(requests, 100);
  EXPECT_EQ(seeds.size(), 3U) << "every process has arrivals of its own";
}

TEST(WorkerProcessesTest, AResultTravelsWhole) {
  RunResult result;
  result.sent = 5;
  result.ok = 3;
  result.failures = {{"UNAVAILABLE", 2}};
  result.skipped = 7;
  result.tokens = 11;
  result.measured = std::chrono::seconds(2);
  result.kernels = {"cpu/a", "cpu/b"};
  result.first_failure = "bytes that are no text: \xff";
  result.interrupted = true;
  for (int i = 1; i <= 1000; ++i) result.latency.Record(microseconds(i * i));
  result.schedule_lag.Record(microseconds(3));
  const auto read = ResultFromText(ResultToText(result));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->sent, 5);
  EXPECT_EQ(read->failed(), 2);
  EXPECT_EQ(read->skipped, 7);
  EXPECT_EQ(read->requests_per_second(), 1.5);
  EXPECT_EQ(read->kernels, result.kernels);
  EXPECT_TRUE(read->interrupted);
  for (const double quantile : {0.0, 0.5, 0.99, 1.0}) {
    EXPECT_EQ(read->latency.Percentile(quantile), result.latency.Percentile(quantile));
  }
  EXPECT_EQ(read->latency.mean(), result.latency.mean());
  EXPECT_EQ(read->schedule_lag.count(), 1);
  EXPECT_EQ(read->kernel_time.count(), 0);
}

TEST(WorkerProcessesTest, WhatIsNoResultIsAnError) {
  for (const char* text : {"", "{}", "ready", R"({"failures": 3})"}) {
    EXPECT_FALSE(ResultFromText(text).ok()) << text;
  }
}

}  // namespace
}  // namespace attnd::loadtest
