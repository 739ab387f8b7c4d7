#include "server/status_totals.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/metrics.h"

namespace attnd {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::Pair;

// Of a live Metrics: a family that is renamed there is missed here.
class StatusTotalsTest : public ::testing::Test {
 protected:
  StatusTotals Read() const { return ReadStatusTotals(metrics_.Families()); }

  SteadyClock clock_;
  Metrics metrics_{{"1.2.3", "abc", "GNU", "avx2"}, "cpu:0", clock_};
};

TEST_F(StatusTotalsTest, SumsKernelsAndSortsThemByName) {
  LaunchRecord launch;
  launch.device = "cpu:0";
  launch.seconds = 0.5;
  launch.cost.flops = 100;
  launch.cost.expected_read_bytes = 30;
  launch.cost.expected_write_bytes = 20;
  launch.kernel = "cpu/b";
  metrics_.RecordLaunch(launch);
  launch.kernel = "cpu/a";
  metrics_.RecordLaunch(launch);
  metrics_.RecordLaunch(launch);
  const StatusTotals totals = Read();
  ASSERT_EQ(totals.kernels.size(), 2U);
  EXPECT_EQ(totals.kernels[1].kernel, "cpu/b");
  const KernelTotals& kernel = totals.kernels[0];
  EXPECT_EQ(kernel.kernel, "cpu/a");
  EXPECT_EQ(kernel.device, "cpu:0");
  EXPECT_EQ(kernel.launches, 2);
  EXPECT_DOUBLE_EQ(kernel.busy_seconds, 1);
  EXPECT_DOUBLE_EQ(kernel.hbm_bytes, 100);
  EXPECT_DOUBLE_EQ(kernel.flops, 200);
}

TEST_F(StatusTotalsTest, ShowsOnlyMethodsThatWereCalled) {
  metrics_.RecordRequest(Method::kDecode, 0, milliseconds(3));
  metrics_.RecordRequest(Method::kAttend, 3, milliseconds(1));
  const StatusTotals totals = Read();
  ASSERT_EQ(totals.latency.size(), 1U);
  EXPECT_EQ(totals.latency.begin()->first, "Decode");
  EXPECT_EQ(totals.latency.begin()->second.count(), 1);
  EXPECT_THAT(totals.answers_by_code, ElementsAre(Pair("INVALID_ARGUMENT", 1), Pair("OK", 1)));
}

TEST_F(StatusTotalsTest, ShowsOnlyStagesThatWerePassed) {
  metrics_.RecordStage(Stage::kQueue, milliseconds(2));
  metrics_.RecordStage(Stage::kQueue, milliseconds(4));
  const StatusTotals totals = Read();
  ASSERT_EQ(totals.stages.size(), 1U);
  EXPECT_DOUBLE_EQ(totals.stages.at("queue").mean(), 0.003);
}

TEST_F(StatusTotalsTest, ReadsGaugesCacheSequencesAndRefusals) {
  metrics_.SetGaugeSource([] {
    GaugeSnapshot gauges;
    gauges.queue_requests = 7;
    gauges.sequences_idle = 4;
    gauges.pool_bytes = 100;
    gauges.used_bytes = 60;
    gauges.pages_used = 3;
    gauges.host_bytes = 50;
    gauges.host_used_bytes = 20;
    gauges.moved_out_bytes = 9;
    return gauges;
  });
  metrics_.RecordRejected(RejectReason::kQueueFull);
  metrics_.RecordSequenceEnd(SequenceEnd::kExpired);
  const StatusTotals totals = Read();
  EXPECT_EQ(totals.gauges.at("queue_depth"), 7);
  EXPECT_EQ(totals.gauges.at("ready"), 0);
  EXPECT_THAT(totals.sequences_by_state, ElementsAre(Pair("idle", 4)));
  EXPECT_THAT(totals.cache_bytes_by_state, ElementsAre(Pair("free", 40), Pair("used", 60)));
  EXPECT_THAT(totals.cache_pages_by_state, ElementsAre(Pair("used", 3)));
  EXPECT_THAT(totals.host_bytes_by_state, ElementsAre(Pair("free", 30), Pair("used", 20)));
  EXPECT_THAT(totals.moved_bytes_by_direction, ElementsAre(Pair("to_host", 9)));
  EXPECT_THAT(totals.rejected_by_reason, ElementsAre(Pair("queue_full", 1)));
  EXPECT_THAT(totals.ended_by_reason, ElementsAre(Pair("expired", 1)));
}

TEST_F(StatusTotalsTest, TakesTheBandwidthOfTheDeviceForACeiling) {
  metrics_.SetBandwidth(BandwidthKind::kMeasured, 4e12);
  const StatusTotals totals = Read();
  ASSERT_EQ(totals.ceilings.size(), 1U);
  EXPECT_EQ(totals.ceilings[0].labels.at("kind"), "measured");
  EXPECT_EQ(totals.ceilings[0].value, 4e12);
}

TEST_F(StatusTotalsTest, TakesEveryRateOfTheDeviceForACeiling) {
  prometheus::MetricFamily flops;
  flops.name = "attnd_device_peak_flops_per_second";
  flops.type = prometheus::MetricType::Gauge;
  flops.metric.resize(1);
  flops.metric[0].gauge.value = 1e15;
  flops.metric[0].label = {{"type", "bf16"}};
  const StatusTotals totals = ReadStatusTotals({&flops, 1});
  ASSERT_EQ(totals.ceilings.size(), 1U);
  EXPECT_EQ(totals.ceilings[0].family, flops.name);
  EXPECT_EQ(totals.ceilings[0].labels.at("type"), "bf16");
}

TEST_F(StatusTotalsTest, CountsBatchesByTheirSequences) {
  metrics_.RecordBatch(1, 3, 10, BatchClosed::kQueueEmpty);
  metrics_.RecordBatch(1, 5000, 10, BatchClosed::kQueueEmpty);
  const Distribution batches = Read().batch_sequences;
  EXPECT_EQ(batches.count(), 2);
  EXPECT_EQ(batches.counts.size(), batches.bounds.size() + 1);
  EXPECT_EQ(batches.counts.back(), 1);
  EXPECT_DOUBLE_EQ(batches.mean(), 2501.5);
}

TEST_F(StatusTotalsTest, TellsAPercentileByTheBoundOfItsBucket) {
  Distribution values;
  values.bounds = {1, 2, 4};
  values.counts = {50, 49, 0, 1};
  EXPECT_EQ(values.UpperBound(0.5), 1);
  EXPECT_EQ(values.UpperBound(0.99), 2);
  EXPECT_EQ(values.UpperBound(1), std::numeric_limits<double>::infinity());
  EXPECT_LT(Distribution().UpperBound(0.5), 0);
}

TEST_F(StatusTotalsTest, SubtractsAnEarlierStateOfAHistogram) {
  Distribution now;
  now.bounds = {1};
  now.counts = {5, 2};
  now.sum = 9;
  Distribution before = now;
  before.counts = {4, 0};
  before.sum = 3;
  EXPECT_THAT(now.Since(before).counts, ElementsAre(1, 2));
  EXPECT_EQ(now.Since(before).sum, 6);
  EXPECT_THAT(now.Since(Distribution()).counts, ElementsAre(5, 2));
}

}  // namespace
}  // namespace attnd
