#include "server/metrics.h"

#include <atomic>
#include <cctype>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "server/metric_families.h"
#include "tests/support/exposition_parser.h"

namespace attnd {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Exposition;
using testing::ParseExposition;

class SteppedClock final : public Clock {
 public:
  TimePoint Now() const override { return now; }
  std::chrono::system_clock::time_point WallNow() const override { return wall; }
  TimePoint now{seconds(1000)};
  std::chrono::system_clock::time_point wall{seconds(1'700'000'000)};
};

BuildInfo TestBuild() { return {"1.2.3", "abc", "g++ 12", "avx512"}; }

LaunchRecord Launch(const char* kernel, double duration_seconds, double read_bytes,
                    double write_bytes = 0) {
  LaunchRecord launch;
  launch.kernel = kernel;
  launch.device = "cpu";
  launch.seconds = duration_seconds;
  launch.cost.expected_read_bytes = read_bytes;
  launch.cost.expected_write_bytes = write_bytes;
  launch.cost.flops = 1000;
  return launch;
}

DeviceReading FullReading() {
  DeviceReading reading;
  reading.device = "cuda:0";
  reading.memory_used_bytes = 11e9;
  reading.memory_free_bytes = 5e9;
  reading.compute_utilization = 0.75;
  reading.memory_utilization = 0.4;
  reading.sm_clock_hertz = 585e6;
  reading.memory_clock_hertz = 5e9;
  reading.power_watts = 65.5;
  reading.temperature_celsius = 61;
  return reading;
}

class MetricsTest : public ::testing::Test {
 protected:
  Exposition Scrape() const {
    Exposition page = ParseExposition(metrics_.Expose());
    EXPECT_EQ(page.errors, std::vector<std::string>{});
    return page;
  }
  double Dropped() const {
    return Scrape().Value("attnd_metrics_dropped_samples_total").value_or(-1);
  }

  void RecordOneOfEverything() {
    metrics_.RecordRequest(Method::kDecode, 0, milliseconds(1));
    metrics_.RecordQueueWait(QueueClass::kDecode, microseconds(20));
    metrics_.RecordStage(Stage::kKernel, microseconds(300));
    metrics_.RecordBatch(2, 3, 40, BatchClosed::kQueueEmpty);
    metrics_.RecordLaunch(Launch("cpu/decode", 0.001, 1e6, 1e3));
    metrics_.RecordRejected(RejectReason::kQueueFull);
    metrics_.AddTransportBytes(TransportPath::kInBand, Direction::kIn, 4096);
    metrics_.RecordSequenceEnd(SequenceEnd::kExpired);
    metrics_.RecordDeviceFault();
    metrics_.SetBandwidth(BandwidthKind::kMeasured, 20e9);
    metrics_.SetGaugeSource([] {
      GaugeSnapshot gauges;
      gauges.queue_requests = 4;
      gauges.ready = true;
      gauges.gpu = FullReading();
      gauges.moved_out_bytes = 1;
      return gauges;
    });
  }

  SteppedClock clock_;
  Metrics metrics_{TestBuild(), "cpu", clock_};
};

TEST_F(MetricsTest, ExposesEveryFamilyOfTheTableAndNoOther) {
  RecordOneOfEverything();
  const Exposition page = Scrape();
  std::vector<std::string> exposed, declared;
  for (const auto& family : page.families) {
    exposed.push_back(family.name);
    EXPECT_FALSE(family.samples.empty()) << family.name;
  }
  for (const auto& family : MetricFamilies()) declared.emplace_back(family.name);
  EXPECT_EQ(exposed, declared);
}

TEST_F(MetricsTest, ExposesTheLabelsOfTheTable) {
  RecordOneOfEverything();
  const Exposition page = Scrape();
  for (std::size_t i = 0; i < page.families.size(); ++i) {
    std::set<std::string> declared;
    std::stringstream labels(MetricFamilies()[i].labels);
    // "reason = a, b; device, state = c": a name stands first or before '='; the rest are values.
    for (std::string group; std::getline(labels, group, ';');) {
      std::stringstream names(group.substr(0, group.find('=')));
      for (std::string name; std::getline(names, name, ',');) {
        name.erase(0, name.find_first_not_of(' '));
        declared.insert(name.substr(0, name.find(' ')));
      }
    }
    for (const auto& sample : page.families[i].samples) {
      std::set<std::string> exposed;
      for (const auto& [name, value] : sample.labels) {
        if (name != "le") exposed.insert(name);
      }
      EXPECT_EQ(exposed, declared) << sample.name;
    }
  }
}

TEST_F(MetricsTest, IsValidBeforeAnythingHappened) {
  const Exposition page = Scrape();
  EXPECT_EQ(page.Value("attnd_requests_total", {{"method", "Decode"}, {"code", "INTERNAL"}}), 0);
  EXPECT_EQ(page.Value("attnd_rejected_total", {{"reason", "queue_full"}}), 0);
  EXPECT_EQ(page.Value("attnd_ready"), 0);
}

TEST_F(MetricsTest, ShowsWhatTheSensorsTellAndNothingElse) {
  const auto samples = [this](const char* name) {
    for (const auto& family : Scrape().families) {
      if (family.name == name) return family.samples.size();
    }
    return std::size_t{99};
  };
  EXPECT_EQ(samples("attnd_device_memory_bytes"), 0);
  EXPECT_EQ(samples("attnd_device_power_watts"), 0);

  DeviceReading reading = FullReading();
  metrics_.SetGaugeSource([&reading] {
    GaugeSnapshot gauges;
    gauges.gpu = reading;
    return gauges;
  });
  const Exposition page = Scrape();
  const auto value = [&page](const char* name, std::map<std::string, std::string> labels) {
    labels["device"] = "cuda:0";
    return page.Value(name, labels);
  };
  EXPECT_EQ(value("attnd_device_memory_bytes", {{"state", "used"}}), 11e9);
  EXPECT_EQ(value("attnd_device_memory_bytes", {{"state", "free"}}), 5e9);
  EXPECT_EQ(value("attnd_device_utilization_ratio", {{"unit", "compute"}}), 0.75);
  EXPECT_EQ(value("attnd_device_utilization_ratio", {{"unit", "memory"}}), 0.4);
  EXPECT_EQ(value("attnd_device_clock_hertz", {{"clock", "sm"}}), 585e6);
  EXPECT_EQ(value("attnd_device_clock_hertz", {{"clock", "memory"}}), 5e9);
  EXPECT_EQ(value("attnd_device_power_watts", {}), 65.5);
  EXPECT_EQ(value("attnd_device_temperature_celsius", {}), 61);

  reading.power_watts.reset();
  reading.memory_utilization.reset();
  EXPECT_EQ(samples("attnd_device_power_watts"), 0);
  EXPECT_EQ(samples("attnd_device_utilization_ratio"), 1);
  EXPECT_EQ(samples("attnd_device_temperature_celsius"), 1);
}

TEST_F(MetricsTest, CountsRequestsByMethodAndCodeAndTimesTheGoodOnes) {
  for (int i = 0; i < 3; ++i) metrics_.RecordRequest(Method::kAttend, 0, milliseconds(2));
  metrics_.RecordRequest(Method::kAttend, 3, microseconds(1));
  metrics_.RecordRequest(Method::kDecode, 8, microseconds(1));
  metrics_.RecordRequest(Method::kDecode, 99, microseconds(1));
  const Exposition page = Scrape();
  EXPECT_EQ(page.Value("attnd_requests_total", {{"method", "Attend"}, {"code", "OK"}}), 3);
  EXPECT_EQ(
      page.Value("attnd_requests_total", {{"method", "Attend"}, {"code", "INVALID_ARGUMENT"}}), 1);
  EXPECT_EQ(
      page.Value("attnd_requests_total", {{"method", "Decode"}, {"code", "RESOURCE_EXHAUSTED"}}),
      1);
  EXPECT_EQ(page.Value("attnd_requests_total", {{"method", "Decode"}, {"code", "UNKNOWN"}}), 1);
  EXPECT_EQ(page.Sum("attnd_requests_total"), 6);
  EXPECT_EQ(page.Value("attnd_request_duration_seconds_count", {{"method", "Attend"}}), 3);
  EXPECT_DOUBLE_EQ(*page.Value("attnd_request_duration_seconds_sum", {{"method", "Attend"}}),
                   0.006);
  EXPECT_EQ(page.Value("attnd_request_duration_seconds_count", {{"method", "Decode"}}), 0);
}

TEST_F(MetricsTest, AddsLaunchesUpByKernel) {
  metrics_.RecordLaunch(Launch("cpu/decode", 0.25, 1000, 10));
  metrics_.RecordLaunch(Launch("cpu/decode", 0.25, 2000, 20));
  metrics_.RecordLaunch(Launch("cpu/prefill", 1, 7));
  const Exposition page = Scrape();
  const std::map<std::string, std::string> decode = {{"kernel", "cpu/decode"}, {"device", "cpu"}};
  auto read = decode, write = decode;
  read["direction"] = "read";
  write["direction"] = "write";
  EXPECT_EQ(page.Value("attnd_kernel_launches_total"), 3);
  EXPECT_EQ(page.Value("attnd_kernel_duration_seconds_count", decode), 2);
  EXPECT_EQ(page.Value("attnd_kernel_busy_seconds_total", decode), 0.5);
  EXPECT_EQ(page.Value("attnd_kernel_hbm_bytes_total", read), 3000);
  EXPECT_EQ(page.Value("attnd_kernel_hbm_bytes_total", write), 30);
  EXPECT_EQ(page.Value("attnd_kernel_flops_total", decode), 2000);
}

TEST_F(MetricsTest, FindsAKernelByItsTextNotItsAddress) {
  const std::string name = "cpu/decode";
  const std::string copy = std::string("cpu") + "/decode";
  metrics_.RecordLaunch(Launch(name.c_str(), 0.25, 1));
  metrics_.RecordLaunch(Launch(copy.c_str(), 0.25, 1));
  EXPECT_EQ(Scrape().Value("attnd_kernel_duration_seconds_count",
                           {{"kernel", "cpu/decode"}, {"device", "cpu"}}),
            2);
}

TEST_F(MetricsTest, ThroughputIsBytesOverKernelTimeOfTheLastTenSeconds) {
  const std::map<std::string, std::string> labels = {{"kernel", "cpu/decode"}, {"device", "cpu"}};
  const auto throughput = [&] {
    return Scrape().Value("attnd_hbm_throughput_bytes_per_second", labels).value_or(-1);
  };
  metrics_.RecordLaunch(Launch("cpu/decode", 0.001, 9e6, 1e6));
  EXPECT_NEAR(throughput(), 1e10, 1e4);
  clock_.now += seconds(5);
  metrics_.RecordLaunch(Launch("cpu/decode", 0.003, 10e6));
  EXPECT_NEAR(throughput(), 20e6 / 0.004, 1e4);  // not the mean of the two rates
  clock_.now += seconds(5);
  EXPECT_NEAR(throughput(), 10e6 / 0.003, 1e4);  // the first launch has left the window
  clock_.now += seconds(5);
  EXPECT_EQ(throughput(), 0);
  clock_.now += seconds(11);  // the slot of an earlier second is used again
  metrics_.RecordLaunch(Launch("cpu/decode", 0.001, 1e6));
  EXPECT_NEAR(throughput(), 1e9, 1e3);
}

TEST_F(MetricsTest, TellsTheTimeOfTheLastCompletionByTheWallClock) {
  EXPECT_FALSE(
      Scrape().Value("attnd_last_kernel_completion_timestamp_seconds", {{"device", "cpu"}}));
  metrics_.RecordLaunch(Launch("cpu/decode", 0.001, 1));
  EXPECT_EQ(Scrape().Value("attnd_last_kernel_completion_timestamp_seconds", {{"device", "cpu"}}),
            1'700'000'000);
  clock_.wall -= seconds(3600);  // set back
  metrics_.RecordLaunch(Launch("cpu/decode", 0.001, 1));
  EXPECT_EQ(Scrape().Value("attnd_last_kernel_completion_timestamp_seconds", {{"device", "cpu"}}),
            1'699'996'400);
}

TEST_F(MetricsTest, DropsAndCountsBadDurations) {
  metrics_.RecordRequest(Method::kDecode, 0, milliseconds(-1));
  metrics_.RecordQueueWait(QueueClass::kPrefill, milliseconds(-1));
  metrics_.RecordStage(Stage::kQueue, milliseconds(-1));
  EXPECT_EQ(Dropped(), 3);
  const Exposition page = Scrape();
  EXPECT_EQ(page.Sum("attnd_request_duration_seconds_count"), 0);
  EXPECT_EQ(page.Sum("attnd_queue_wait_seconds_count"), 0);
  EXPECT_EQ(page.Sum("attnd_stage_duration_seconds_count"), 0);
  // The answer itself happened.
  EXPECT_EQ(page.Value("attnd_requests_total", {{"method", "Decode"}, {"code", "OK"}}), 1);
}

TEST_F(MetricsTest, DropsAndCountsBadIncrements) {
  metrics_.AddTransportBytes(TransportPath::kInBand, Direction::kIn, 10);
  metrics_.AddTransportBytes(TransportPath::kInBand, Direction::kIn, -1);
  EXPECT_EQ(Dropped(), 1);
  metrics_.RecordBatch(-1, -1, -1, BatchClosed::kShape);
  EXPECT_EQ(Dropped(), 4);
  metrics_.SetBandwidth(BandwidthKind::kMeasured, std::nan(""));
  metrics_.SetBandwidth(BandwidthKind::kMeasured, -5);
  EXPECT_EQ(Dropped(), 6);
  const Exposition page = Scrape();
  EXPECT_EQ(page.Sum("attnd_transport_bytes_total"), 10);
  EXPECT_EQ(page.Sum("attnd_device_hbm_bandwidth_bytes_per_second"), 0);
}

TEST_F(MetricsTest, DropsBadPartsOfALaunchAndKeepsTheSumsFinite) {
  for (const double bad : {std::nan(""), -1.0, std::numeric_limits<double>::infinity()}) {
    LaunchRecord launch = Launch("cpu/decode", bad, bad, bad);
    launch.cost.flops = bad;
    launch.exact_reruns = -1;
    metrics_.RecordLaunch(launch);
  }
  EXPECT_EQ(Dropped(), 18);
  metrics_.RecordLaunch(Launch("cpu/decode", 0.5, 1e9));
  const Exposition page = Scrape();
  EXPECT_EQ(page.Sum("attnd_kernel_busy_seconds_total"), 0.5);
  EXPECT_EQ(page.Sum("attnd_kernel_hbm_bytes_total"), 1e9);
  EXPECT_EQ(page.Sum("attnd_hbm_throughput_bytes_per_second"), 2e9);
}

TEST_F(MetricsTest, DropsLaunchesWithoutAKernelName) {
  metrics_.RecordLaunch(Launch(nullptr, 0.5, 1));
  EXPECT_EQ(Dropped(), 1);
}

TEST_F(MetricsTest, BoundsTheNumberOfKernelSeries) {
  std::vector<std::string> names;
  for (int i = 0; i < 600; ++i) names.push_back("kernel" + std::to_string(i));
  for (const std::string& name : names) metrics_.RecordLaunch(Launch(name.c_str(), 0.001, 1));
  EXPECT_EQ(Dropped(), 600 - 512);
}

TEST_F(MetricsTest, EscapesLabelValues) {
  const std::string version = "1.0 \"quoted\" back\\slash\nnew line µ";
  const Metrics metrics({version, "", "{a=\"b\"}", "#"}, "de\"vice\\", clock_);
  const Exposition page = ParseExposition(metrics.Expose());
  EXPECT_EQ(page.errors, std::vector<std::string>{});
  EXPECT_EQ(
      page.Value(
          "attnd_build_info",
          {{"version", version}, {"commit", ""}, {"compiler", "{a=\"b\"}"}, {"cpu_target", "#"}}),
      1);
  EXPECT_EQ(page.Value("attnd_kv_cache_pages", {{"device", "de\"vice\\"}, {"state", "used"}}), 0);
}

TEST_F(MetricsTest, ReadsGaugesAtEachScrape) {
  GaugeSnapshot gauges;
  gauges.queue_requests = 1;
  gauges.queue_bytes = 2;
  gauges.running_requests = 3;
  gauges.running_batches = 4;
  gauges.open_streams = 5;
  gauges.sequences_active = 6;
  gauges.sequences_idle = 7;
  gauges.pages_used = 17;
  gauges.pages_shared = 9;
  gauges.pages_free = 10;
  gauges.pool_bytes = 100;
  gauges.used_bytes = 30;
  gauges.reserved_bytes = 20;
  gauges.ready = true;
  gauges.draining = true;
  metrics_.SetGaugeSource([&gauges] { return gauges; });
  const Exposition page = Scrape();
  EXPECT_EQ(page.Value("attnd_queue_depth"), 1);
  EXPECT_EQ(page.Value("attnd_queue_bytes"), 2);
  EXPECT_EQ(page.Value("attnd_running_requests"), 3);
  EXPECT_EQ(page.Value("attnd_running_batches"), 4);
  EXPECT_EQ(page.Value("attnd_open_streams"), 5);
  EXPECT_EQ(page.Value("attnd_sequences", {{"state", "active"}}), 6);
  EXPECT_EQ(page.Value("attnd_sequences", {{"state", "idle"}}), 7);
  EXPECT_EQ(page.Value("attnd_kv_cache_pages", {{"device", "cpu"}, {"state", "used"}}), 8);
  EXPECT_EQ(page.Value("attnd_kv_cache_pages", {{"device", "cpu"}, {"state", "shared"}}), 9);
  EXPECT_EQ(page.Value("attnd_kv_cache_pages", {{"device", "cpu"}, {"state", "free"}}), 10);
  EXPECT_EQ(page.Value("attnd_kv_cache_bytes", {{"device", "cpu"}, {"state", "used"}}), 30);
  EXPECT_EQ(page.Value("attnd_kv_cache_bytes", {{"device", "cpu"}, {"state", "reserved"}}), 20);
  EXPECT_EQ(page.Value("attnd_kv_cache_bytes", {{"device", "cpu"}, {"state", "free"}}), 50);
  EXPECT_EQ(page.Value("attnd_ready"), 1);
  EXPECT_EQ(page.Value("attnd_draining"), 1);
  gauges = {};
  EXPECT_EQ(Scrape().Value("attnd_running_requests"), 0);
  metrics_.SetGaugeSource(nullptr);
  EXPECT_EQ(Scrape().Value("attnd_running_requests"), 0);
}

TEST_F(MetricsTest, AGaugeSourceThatThrowsReportsZeros) {
  metrics_.SetGaugeSource([]() -> GaugeSnapshot { throw std::runtime_error("gone"); });
  EXPECT_EQ(Scrape().Value("attnd_queue_depth"), 0);
}

TEST_F(MetricsTest, SaysThatBytesAreModelled) {
  for (const auto& family : MetricFamilies()) {
    const std::string name = family.name;
    if (name.find("hbm_bytes") != std::string::npos ||
        name.find("hbm_throughput") != std::string::npos) {
      std::string help = family.help;
      for (char& c : help) c = static_cast<char>(std::tolower(c));
      EXPECT_NE(help.find("modelled"), std::string::npos) << name;
    }
  }
}

TEST_F(MetricsTest, KeepsEverySampleOfSixteenThreadsWhileScraped) {
  constexpr int kThreads = 16;
  constexpr int kRounds = 500;
  const std::vector<std::string> kernels = {"a", "b", "c", "d", "e", "f", "g"};
  std::atomic<bool> done{false};
  std::thread scraper([this, &done] {
    while (!done.load()) Scrape();
  });
  std::vector<std::thread> recorders;
  for (int thread = 0; thread < kThreads; ++thread) {
    recorders.emplace_back([this, thread, &kernels] {
      for (int i = 0; i < kRounds; ++i) {
        const auto pick = static_cast<std::size_t>(thread + i);
        metrics_.RecordRequest(static_cast<Method>(pick % 14), static_cast<int>(pick % 17),
                               microseconds(i));
        metrics_.RecordStage(static_cast<Stage>(pick % 6), microseconds(i));
        metrics_.RecordBatch(1, 2, 3, BatchClosed::kAlone);
        metrics_.RecordLaunch(Launch(kernels[pick % kernels.size()].c_str(), 0.001, 100, 28));
        metrics_.RecordRejected(RejectReason::kQuota);
      }
    });
  }
  for (std::thread& recorder : recorders) recorder.join();
  done.store(true);
  scraper.join();
  constexpr double kTotal = kThreads * kRounds;
  const Exposition page = Scrape();
  EXPECT_EQ(page.Sum("attnd_requests_total"), kTotal);
  EXPECT_EQ(page.Sum("attnd_stage_duration_seconds_count"), kTotal);
  EXPECT_EQ(page.Value("attnd_batch_tokens_sum"), 3 * kTotal);
  EXPECT_EQ(page.Sum("attnd_kernel_duration_seconds_count"), kTotal);
  EXPECT_EQ(page.Sum("attnd_kernel_hbm_bytes_total"), 128 * kTotal);
  EXPECT_EQ(page.Value("attnd_rejected_total", {{"reason", "quota"}}), kTotal);
  // All launches fall into one second of the stepped clock: 128 bytes a millisecond.
  for (const std::string& kernel : kernels) {
    EXPECT_DOUBLE_EQ(
        page.Value("attnd_hbm_throughput_bytes_per_second", {{"kernel", kernel}, {"device", "cpu"}})
            .value_or(0),
        128'000);
  }
}

TEST_F(MetricsTest, DocumentationIsCurrent) {
  std::ifstream file(ATTND_SOURCE_DIR "/docs/metrics.md");
  const std::string committed{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(committed, Metrics::FamiliesAsMarkdown()) << "write it anew with: ninja docs";
}

TEST_F(MetricsTest, MethodNamesAreTheRpcNames) {
  EXPECT_STREQ(MethodName(Method::kAttend), "Attend");
  EXPECT_STREQ(MethodName(Method::kGetServerInfo), "GetServerInfo");
  EXPECT_STREQ(MethodName(Method::kListSharedMemory), "ListSharedMemory");
}

}  // namespace
}  // namespace attnd
