#include "server/status_report.h"

#include <limits>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace attnd {
namespace {

using Json = nlohmann::json;

class StatusReportTest : public ::testing::Test {
 protected:
  Json Report() const { return Json::parse(StatusJson(facts_, state_, totals_, samples_)); }

  static StatusSample SampleAt(double unix_seconds) {
    StatusSample sample;
    sample.unix_seconds = unix_seconds;
    sample.period_seconds = 2;
    return sample;
  }

  StatusFacts facts_;
  StatusState state_;
  StatusTotals totals_;
  std::vector<StatusSample> samples_;
};

TEST_F(StatusReportTest, SaysWhatRunsAndSinceWhen) {
  facts_.server_name = "one";
  facts_.build = {"0.1.0", "abc", "GNU 12", "avx2"};
  facts_.flags = {{"threads", "device", "2", "0"}};
  facts_.start_unix_seconds = 100;
  state_ = {160, false, "device fault"};
  const Json report = Report();
  EXPECT_EQ(report["server"]["name"], "one");
  EXPECT_EQ(report["server"]["commit"], "abc");
  EXPECT_EQ(report["uptime_seconds"], 60);
  EXPECT_EQ(report["serving"], false);
  EXPECT_EQ(report["reason"], "device fault");
  EXPECT_EQ(report["flags"][0]["value"], "2");
  EXPECT_EQ(report["flags"][0]["default"], "0");
}

TEST_F(StatusReportTest, AnIdleServerHasEmptyColumns) {
  const Json report = Report();
  EXPECT_TRUE(report["history"]["times"].is_array());
  EXPECT_TRUE(report["history"]["times"].empty());
  EXPECT_TRUE(report["kernels"].empty());
  EXPECT_EQ(report["batches"]["total"], 0);
}

TEST_F(StatusReportTest, AKernelCarriesItsTotalsAndItsLastWindow) {
  totals_.kernels = {{"cpu/a", "cpu:0", 9, 3, 300, 3000}, {"cpu/b", "cpu:0", 1, 1, 1, 1}};
  samples_ = {SampleAt(10)};
  samples_[0].kernels = {{"cpu/a", "cpu:0", 2, 0.5, 50, 500}};
  const Json report = Report();
  EXPECT_EQ(report["kernels"][0]["total"]["hbm_bytes"], 300);
  EXPECT_EQ(report["kernels"][0]["window"]["hbm_bytes"], 50);
  EXPECT_EQ(report["kernels"][0]["window"]["busy_seconds"], 0.5);
  EXPECT_EQ(report["kernels"][0]["window"]["last_unix_seconds"], 10);
  EXPECT_TRUE(report["kernels"][1]["window"].is_null());
}

TEST_F(StatusReportTest, EveryColumnHasAnEntryForEverySample) {
  samples_ = {SampleAt(2), SampleAt(4), SampleAt(6)};
  samples_[1].kernels = {{"cpu/a", "cpu:0", 2, 0.5, 50, 500}};
  samples_[1].answers = 10;
  samples_[2].latency["Decode"] = {1, 0.25, std::numeric_limits<double>::infinity()};
  const Json history = Report()["history"];
  EXPECT_EQ(history["times"], Json({2, 4, 6}));
  EXPECT_EQ(history["answers_per_second"], Json({0, 5, 0}));
  EXPECT_EQ(history["hbm_bytes_per_second"], Json({0, 25, 0}));
  EXPECT_EQ(history["kernel_hbm_bytes_per_second"]["cpu/a"], Json({nullptr, 100, nullptr}));
  EXPECT_EQ(history["latency_seconds"]["Decode"]["p50"], Json({nullptr, nullptr, 0.25}));
  EXPECT_EQ(history["latency_seconds"]["Decode"]["p99"], Json({nullptr, nullptr, nullptr}));
}

TEST_F(StatusReportTest, BatchesOfTheLastMinuteStandBesideAll) {
  totals_.batch_sequences.bounds = {1, 2};
  totals_.batch_sequences.counts = {100, 50, 0};
  for (int i = 0; i < 60; ++i) {
    samples_.push_back(SampleAt(2 * i));
    samples_.back().batch_sequences.counts = {0, 1, 0};
  }
  const Json sequences = Report()["batches"]["sequences"];
  EXPECT_EQ(sequences["counts"], Json({100, 50, 0}));
  EXPECT_EQ(sequences["recent_counts"], Json({0, 30, 0}));
  EXPECT_EQ(sequences["recent_seconds"], 60);
}

TEST_F(StatusReportTest, AStageCarriesItsSumAndCount) {
  totals_.stages["queue"].counts = {2, 1};
  totals_.stages["queue"].sum = 0.5;
  EXPECT_EQ(Report()["stages"]["queue"], Json({{"count", 3}, {"seconds", 0.5}}));
}

TEST_F(StatusReportTest, ACeilingTellsItsUnit) {
  totals_.ceilings = {{"attnd_device_hbm_bandwidth_bytes_per_second", {{"kind", "measured"}}, 5},
                      {"attnd_device_x_flops_per_second", {}, 7}};
  const Json ceilings = Report()["ceilings"];
  EXPECT_EQ(ceilings[0]["unit"], "B/s");
  EXPECT_EQ(ceilings[0]["labels"]["kind"], "measured");
  EXPECT_EQ(ceilings[1]["unit"], "FLOP/s");
}

TEST_F(StatusReportTest, BytesThatAreNoTextDoNotEndTheReport) {
  facts_.server_name = "\xff\xfe";
  EXPECT_TRUE(Report()["server"]["name"].is_string());
}

}  // namespace
}  // namespace attnd
