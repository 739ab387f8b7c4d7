// What /metrics says of a whole server: failures by their code, gauges that fall back to zero,
// quantiles that agree with the durations of calls.
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <future>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/metrics.h"
#include "tests/support/await.h"
#include "tests/support/exposition_parser.h"
#include "tests/support/fake_clock.h"
#include "tests/support/local_server.h"

namespace attnd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::AttendRequestOf;
using testing::Await;
using testing::DecodeRequestOf;
using testing::Exposition;
using testing::LocalServer;
using testing::ParseExposition;
using testing::SmallConfig;

Exposition Scrape(const AttndServer& server) {
  httplib::Client client("127.0.0.1", server.admin_port());
  const auto answer = client.Get("/metrics");
  EXPECT_TRUE(answer);
  if (!answer) return {};
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->get_header_value("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  Exposition page = ParseExposition(answer->body);
  EXPECT_EQ(page.errors, std::vector<std::string>{});
  return page;
}

double RequestsWith(const Exposition& page, const char* method, const char* code) {
  return page.Value("attnd_requests_total", {{"method", method}, {"code", code}}).value_or(-1);
}

// An Attend call on a thread of its own.
struct PendingCall {
  explicit PendingCall(LocalServer& local, milliseconds timeout = milliseconds(0)) {
    auto request = AttendRequestOf(1, 4, 1);
    if (timeout.count() > 0) {
      request.mutable_execution()->mutable_timeout()->set_nanos(
          static_cast<std::int32_t>(timeout.count() * 1'000'000));
    }
    done = std::async(std::launch::async, [this, &local, request = std::move(request)] {
      v1::AttendResponse response;
      return local.stub->Attend(&context, request, &response).error_code();
    });
  }
  grpc::ClientContext context;
  std::future<grpc::StatusCode> done;
};

class MetricsCodesE2eTest : public ::testing::Test {
 protected:
  static constexpr int kQueueLimit = 8;

  static ServerConfig Config() {
    ServerConfig config = SmallConfig();
    config.max_queue_requests = kQueueLimit;
    return config;
  }
  PendingCall& Begin(milliseconds timeout = milliseconds(0)) {
    return *calls_.emplace_back(std::make_unique<PendingCall>(local_, timeout));
  }
  // Fills the device: two batches of one call, which do not end before the backend is released.
  void OccupyDevice() {
    local_.backend.Hold();
    for (int i = 0; i < 2; ++i) {
      const std::int64_t before = local_.backend.batches();
      Begin();
      local_.backend.AwaitBatches(before + 1);
    }
  }
  bool AwaitQueued(std::int64_t count) {
    return Await([&] { return local_.server->GetSnapshot().queue_requests == count; });
  }
  void EndAll() {
    for (auto& call : calls_) ++seen_[call->done.get()];
    calls_.clear();
  }

  LocalServer local_{Config()};
  std::vector<std::unique_ptr<PendingCall>> calls_;
  std::map<grpc::StatusCode, int> seen_;
};

TEST_F(MetricsCodesE2eTest, EveryAnswerIsCountedUnderTheCodeThatTheClientSaw) {
  for (int i = 0; i < 46; ++i) {
    Begin();
    EndAll();
  }
  for (int i = 0; i < 10; ++i) {
    auto request = AttendRequestOf(1, 4, 1);
    request.mutable_q()->set_shape(0, 2);
    grpc::ClientContext context;
    v1::AttendResponse response;
    ++seen_[local_.stub->Attend(&context, request, &response).error_code()];
  }
  OccupyDevice();
  for (int i = 0; i < kQueueLimit; ++i) Begin();
  ASSERT_TRUE(AwaitQueued(kQueueLimit));
  for (int i = 0; i < 10; ++i) {
    PendingCall refused(local_);
    ++seen_[refused.done.get()];
  }
  local_.backend.Release();
  EndAll();

  OccupyDevice();
  for (int i = 0; i < 10; ++i) {
    PendingCall expired(local_, milliseconds(20));
    ++seen_[expired.done.get()];
  }
  std::vector<PendingCall*> cancelled;
  for (int i = 0; i < 5; ++i) cancelled.push_back(&Begin());
  ASSERT_TRUE(AwaitQueued(5));
  for (PendingCall* call : cancelled) call->context.TryCancel();
  ASSERT_TRUE(AwaitQueued(0));
  local_.backend.Release();
  EndAll();

  OccupyDevice();
  for (int i = 0; i < 5; ++i) Begin();
  ASSERT_TRUE(AwaitQueued(5));
  local_.backend.FailNext(absl::InternalError("injected"));
  // The next batch is the one of the five: the held ones are already with the backend.
  local_.backend.Release();
  EndAll();
  ASSERT_TRUE(local_.AwaitIdle());

  const std::map<grpc::StatusCode, int> expected = {{grpc::StatusCode::OK, 60},
                                                    {grpc::StatusCode::INVALID_ARGUMENT, 10},
                                                    {grpc::StatusCode::RESOURCE_EXHAUSTED, 10},
                                                    {grpc::StatusCode::DEADLINE_EXCEEDED, 10},
                                                    {grpc::StatusCode::CANCELLED, 5},
                                                    {grpc::StatusCode::INTERNAL, 5}};
  EXPECT_EQ(seen_, expected);
  const Exposition page = Scrape(*local_.server);
  EXPECT_EQ(RequestsWith(page, "Attend", "OK"), 60);
  EXPECT_EQ(RequestsWith(page, "Attend", "INVALID_ARGUMENT"), 10);
  EXPECT_EQ(RequestsWith(page, "Attend", "RESOURCE_EXHAUSTED"), 10);
  EXPECT_EQ(RequestsWith(page, "Attend", "DEADLINE_EXCEEDED"), 10);
  EXPECT_EQ(RequestsWith(page, "Attend", "CANCELLED"), 5);
  EXPECT_EQ(RequestsWith(page, "Attend", "INTERNAL"), 5);
  EXPECT_EQ(page.Sum("attnd_requests_total"), 100);
  EXPECT_EQ(page.Value("attnd_request_duration_seconds_count", {{"method", "Attend"}}), 60);
  EXPECT_EQ(page.Value("attnd_rejected_total", {{"reason", "queue_full"}}), 10);
  EXPECT_EQ(page.Value("attnd_rejected_total", {{"reason", "deadline"}}), 10);
  EXPECT_EQ(page.Value("attnd_device_faults_total"), 1);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr seconds kUntilZero(5);  // everything is several times slower
#else
constexpr seconds kUntilZero(1);
#endif

TEST(MetricsE2eTest, FallBackToZeroAfterEverythingWasCancelled) {
  constexpr int kStreams = 100;
  constexpr int kMessages = 5;
  ServerConfig config = SmallConfig();
  config.default_lease = Milliseconds(300);
  LocalServer local(config);
  local.backend.Hold();

  struct Stream {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<v1::DecodeRequest, v1::DecodeResponse>> calls;
  };
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < kStreams; ++i) {
    auto& stream = streams.emplace_back(std::make_unique<Stream>());
    stream->calls = local.stub->DecodeStream(&stream->context);
    const std::string id = local.CreateSequence();
    for (int message = 0; message < kMessages; ++message) {
      ASSERT_TRUE(stream->calls->Write(DecodeRequestOf(id, message, 1)));
    }
  }
  ASSERT_TRUE(Await([&] {
    const auto snapshot = local.server->GetSnapshot();
    return snapshot.queue_requests + snapshot.running_requests == kStreams * kMessages;
  }));
  const Exposition busy = Scrape(*local.server);
  EXPECT_EQ(busy.Value("attnd_open_streams"), kStreams);
  EXPECT_GT(busy.Value("attnd_queue_depth"), 0);
  EXPECT_GT(busy.Value("attnd_queue_bytes"), 0);
  EXPECT_GT(busy.Value("attnd_running_requests"), 0);
  EXPECT_GT(busy.Sum("attnd_sequences"), 0);

  const auto cancelled = steady_clock::now();
  for (auto& stream : streams) stream->context.TryCancel();
  for (auto& stream : streams) {
    EXPECT_EQ(stream->calls->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  local.backend.Release();
  const auto pages_in_use = [](const Exposition& page) {
    return page.Value("attnd_kv_cache_pages", {{"device", "cpu"}, {"state", "used"}}).value_or(-1) +
           page.Value("attnd_kv_cache_pages", {{"device", "cpu"}, {"state", "shared"}})
               .value_or(-1);
  };
  std::this_thread::sleep_until(cancelled + kUntilZero);
  const Exposition page = Scrape(*local.server);
  for (const char* gauge : {"attnd_open_streams", "attnd_queue_depth", "attnd_queue_bytes",
                            "attnd_running_requests", "attnd_running_batches"}) {
    EXPECT_EQ(page.Value(gauge), 0) << gauge;
  }
  EXPECT_EQ(page.Sum("attnd_sequences"), 0);
  EXPECT_EQ(pages_in_use(page), 0);
  double finished = 0;
  for (const auto& family : page.families) {
    if (family.name != "attnd_requests_total") continue;
    for (const auto& sample : family.samples) {
      if (sample.labels.at("method") == "DecodeStream") finished += sample.value;
    }
  }
  EXPECT_EQ(finished, kStreams * kMessages);
  EXPECT_EQ(page.Value("attnd_sequences_ended_total", {{"reason", "expired"}}), kStreams);
}

// The linear interpolation of PromQL's histogram_quantile.
double Quantile(const Exposition& page, const std::string& name, const std::string& method,
                double quantile) {
  std::vector<std::pair<double, double>> buckets;
  for (const auto& family : page.families) {
    for (const auto& sample : family.samples) {
      if (sample.name != name + "_bucket" || sample.labels.at("method") != method) continue;
      buckets.emplace_back(std::stod(sample.labels.at("le")), sample.value);
    }
  }
  const double rank = quantile * buckets.back().second;
  double lower_bound = 0;
  double lower_count = 0;
  for (const auto& [bound, count] : buckets) {
    if (count >= rank) {
      return lower_bound + (bound - lower_bound) * (rank - lower_count) / (count - lower_count);
    }
    lower_bound = bound;
    lower_count = count;
  }
  return 0;
}

// The clock moves only while the backend holds the call: every duration is known exactly, however
// long a busy machine takes for it.
TEST(MetricsE2eTest, InterpolatedQuantilesAgreeWithTheTrueOnes) {
  FakeClock clock;
  ServerHooks hooks;
  hooks.clock = &clock;
  LocalServer local(SmallConfig(), std::move(hooks));
  std::mt19937_64 random(1);
  std::lognormal_distribution<double> about_3_ms(std::log(3e-3), 0.7);
  std::vector<double> durations;
  for (int i = 0; i < 500; ++i) {
    local.backend.Hold();
    const std::int64_t before = local.backend.batches();
    PendingCall call(local);
    local.backend.AwaitBatches(before + 1);
    const auto duration =
        std::chrono::nanoseconds(static_cast<std::int64_t>(about_3_ms(random) * 1e9));
    clock.Advance(duration);
    local.backend.Release();
    ASSERT_EQ(call.done.get(), grpc::StatusCode::OK);
    durations.push_back(std::chrono::duration<double>(duration).count());
  }
  std::sort(durations.begin(), durations.end());
  const Exposition page = Scrape(*local.server);
  EXPECT_EQ(page.Value("attnd_request_duration_seconds_count", {{"method", "Attend"}}), 500);
  for (const double quantile : {0.1, 0.5, 0.9, 0.99}) {
    const double exact =
        durations[static_cast<std::size_t>(quantile * static_cast<double>(durations.size()))];
    const double ratio =
        Quantile(page, "attnd_request_duration_seconds", "Attend", quantile) / exact;
    EXPECT_LE(std::max(ratio, 1 / ratio), 1.5) << quantile;
  }
}

TEST(MetricsE2eTest, ABatchThatIsReportedTwiceCountsOnce) {
  LocalServer local;
  for (int i = 0; i < 10; ++i) {
    if (i % 3 == 0) local.backend.ReportNextTwice();
    PendingCall call(local);
    EXPECT_EQ(call.done.get(), grpc::StatusCode::OK);
  }
  ASSERT_TRUE(local.AwaitIdle());
  const Exposition page = Scrape(*local.server);
  EXPECT_EQ(RequestsWith(page, "Attend", "OK"), 10);
  EXPECT_EQ(page.Value("attnd_kernel_launches_total"), 10);
  EXPECT_EQ(page.Value("attnd_running_batches"), 0);
  EXPECT_EQ(page.Value("attnd_running_requests"), 0);
  EXPECT_EQ(page.Value("attnd_batch_requests_count"), 10);
}

TEST(MetricsE2eTest, TheSensorsOfANamedLibraryAreExported) {
  ServerConfig config = SmallConfig();
  config.nvml_library = ATTND_FAKE_NVML;
  LocalServer local(config);
  const std::map<std::string, std::string> device = {{"device", "nvml:0"}};
  EXPECT_TRUE(Await(
      [&] { return Scrape(*local.server).Value("attnd_device_power_watts", device).has_value(); }));
  const Exposition page = Scrape(*local.server);
  EXPECT_EQ(page.Value("attnd_device_power_watts", device), 65.5);
  EXPECT_EQ(page.Value("attnd_device_temperature_celsius", device), 61);
  EXPECT_EQ(page.Sum("attnd_device_memory_bytes"), 16.0 * (1 << 30));
}

TEST(MetricsE2eTest, ACpuServerWithoutANamedLibraryTellsOfNoGpu) {
  LocalServer local;
  EXPECT_EQ(Scrape(*local.server).Sum("attnd_device_memory_bytes"), 0);
  ServerConfig config = SmallConfig();
  config.nvml_library = "/no/such/library.so";
  LocalServer other(config);  // starts all the same
  EXPECT_EQ(Scrape(*other.server).Sum("attnd_device_memory_bytes"), 0);
}

TEST(MetricsE2eTest, TheBandwidthIsMeasuredAtStartUnlessSwitchedOff) {
  const std::map<std::string, std::string> measured = {{"device", "cpu"}, {"kind", "measured"}};
  const auto server_info = [](LocalServer& local) {
    grpc::ClientContext context;
    v1::GetServerInfoResponse info;
    EXPECT_TRUE(local.stub->GetServerInfo(&context, {}, &info).ok());
    return info.devices(0).measured_read_bytes_per_second();
  };
  ServerConfig config = SmallConfig();
  ASSERT_FALSE(config.measure_ceilings);
  {
    LocalServer off(config);
    EXPECT_FALSE(
        Scrape(*off.server).Value("attnd_device_hbm_bandwidth_bytes_per_second", measured));
    EXPECT_EQ(server_info(off), 0);
  }
  config.measure_ceilings = true;
  LocalServer on(config);
  const auto bytes_per_second =
      Scrape(*on.server).Value("attnd_device_hbm_bandwidth_bytes_per_second", measured);
  ASSERT_TRUE(bytes_per_second.has_value());
  EXPECT_GT(*bytes_per_second, 1e8);
  EXPECT_NEAR(server_info(on), *bytes_per_second, *bytes_per_second * 1e-6);
}

class WallClockSetBack final : public Clock {
 public:
  TimePoint Now() const override { return steady_clock::now(); }
  std::chrono::system_clock::time_point WallNow() const override {
    return std::chrono::system_clock::now() - std::chrono::hours(set_back_.load() ? 24 : 0);
  }
  void SetBack() { set_back_.store(true); }

 private:
  std::atomic<bool> set_back_{false};
};

TEST(MetricsE2eTest, RequestsGoOnWhenTheWallClockIsSetBack) {
  WallClockSetBack clock;
  ServerHooks hooks;
  hooks.clock = &clock;
  LocalServer local(SmallConfig(), std::move(hooks));
  for (int i = 0; i < 10; ++i) {
    if (i == 5) clock.SetBack();
    PendingCall call(local);
    EXPECT_EQ(call.done.get(), grpc::StatusCode::OK);
  }
  const Exposition page = Scrape(*local.server);
  EXPECT_EQ(RequestsWith(page, "Attend", "OK"), 10);
  EXPECT_EQ(page.Value("attnd_metrics_dropped_samples_total"), 0);
}

}  // namespace
}  // namespace attnd
