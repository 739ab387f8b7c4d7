// Readiness of a whole server: not before the self-test, not after a fault, not lost to one
// oversized request; and memory that comes back after clients that vanish.
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/support/await.h"
#include "tests/support/exposition_parser.h"
#include "tests/support/local_calls.h"
#include "tests/support/local_server.h"
#include "tests/support/resident_memory.h"

namespace attnd {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::Attend;
using testing::AttendRequestOf;
using testing::Await;
using testing::DecodeRequestOf;
using testing::FloatsOf;
using testing::LocalServer;
using testing::ResidentBytes;
using testing::SmallConfig;

constexpr char kService[] = "attnd.v1.AttentionService";

struct Checked {
  grpc::StatusCode code;
  HealthCheckResponse::ServingStatus status;
};

Checked Check(const LocalServer& local, const std::string& service) {
  grpc::ClientContext context;
  HealthCheckRequest request;
  request.set_service(service);
  HealthCheckResponse response;
  const auto stub = Health::NewStub(local.channel);
  const auto code = stub->Check(&context, request, &response).error_code();
  return {code, response.status()};
}

int ReadyzStatus(const LocalServer& local, std::string* body = nullptr) {
  httplib::Client client("127.0.0.1", local.server->admin_port());
  const auto answer = client.Get("/readyz");
  if (!answer) return 0;
  if (body != nullptr) *body = answer->body;
  return answer->status;
}

TEST(HealthE2eTest, DoesNotServeBeforeTheSelfTestAndThenAtOnce) {
  std::promise<void> pass;
  ServerHooks hooks;
  hooks.before_self_test = [passed = pass.get_future().share()] {
    passed.wait();
    return absl::OkStatus();
  };
  LocalServer local(SmallConfig(), std::move(hooks));
  const auto health = Health::NewStub(local.channel);
  grpc::ClientContext watch_context;
  HealthCheckRequest watch_request;
  watch_request.set_service(kService);
  const auto watch = health->Watch(&watch_context, watch_request);
  HealthCheckResponse told;
  ASSERT_TRUE(watch->Read(&told));
  EXPECT_EQ(told.status(), HealthCheckResponse::NOT_SERVING);
  for (int poll = 0; poll < 20; ++poll) {
    for (const char* service : {"", kService}) {
      EXPECT_EQ(Check(local, service).status, HealthCheckResponse::NOT_SERVING);
    }
    EXPECT_EQ(Check(local, "no.such.Service").code, grpc::StatusCode::NOT_FOUND);
    EXPECT_EQ(ReadyzStatus(local), 503);
  }
  EXPECT_EQ(Attend(local, AttendRequestOf(1, 1, 1)).error_code(), grpc::StatusCode::UNAVAILABLE);

  pass.set_value();
  ASSERT_TRUE(watch->Read(&told));
  EXPECT_EQ(told.status(), HealthCheckResponse::SERVING);
  // The first call after SERVING.
  EXPECT_TRUE(Attend(local, AttendRequestOf(1, 1, 1)).ok());
  EXPECT_EQ(ReadyzStatus(local), 200);
  watch_context.TryCancel();
}

TEST(HealthE2eTest, NeverServesWhenTheSelfTestFails) {
  ServerHooks hooks;
  hooks.before_self_test = [] { return absl::InternalError("injected"); };
  LocalServer local(SmallConfig(), std::move(hooks));
  EXPECT_EQ(local.server->WaitUntilReady().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Check(local, "").status, HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(ReadyzStatus(local), 503);
  EXPECT_EQ(Attend(local, AttendRequestOf(1, 1, 1)).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(HealthE2eTest, TheCallThatMetTheFaultIsInternalAndNothingIsServedAfterwards) {
  LocalServer local;
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(Attend(local, AttendRequestOf(1, 1, 1)).ok());
  local.backend.FailNext(absl::InternalError("injected"));
  EXPECT_EQ(Attend(local, AttendRequestOf(1, 1, 1)).error_code(), grpc::StatusCode::INTERNAL);
  const auto start = steady_clock::now();
  EXPECT_EQ(Attend(local, AttendRequestOf(1, 1, 1)).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_LT(steady_clock::now() - start, seconds(1));
  EXPECT_TRUE(Await([&] { return Check(local, "").status == HealthCheckResponse::NOT_SERVING; },
                    seconds(5)));
  std::string body;
  EXPECT_EQ(ReadyzStatus(local, &body), 503);
  EXPECT_NE(body.find("device fault"), std::string::npos) << body;
  const auto page = testing::ParseExposition(local.server->MetricsText());
  EXPECT_EQ(page.Value("attnd_device_faults_total"), 1);
  EXPECT_EQ(page.Value("attnd_ready"), 0);
}

TEST(HealthE2eTest, ADeviceThatAnswersNothingIsNotReadyUntilItDoes) {
  ServerConfig config = SmallConfig();
  config.stall_limit = Milliseconds(200);
  LocalServer local(config);
  std::this_thread::sleep_for(milliseconds(400));
  EXPECT_EQ(ReadyzStatus(local), 200) << "an idle device is not stuck";
  local.backend.Hold();
  auto call =
      std::async(std::launch::async, [&] { return Attend(local, AttendRequestOf(1, 1, 1)); });
  EXPECT_TRUE(Await([&] { return ReadyzStatus(local) == 503; }));
  EXPECT_EQ(Check(local, kService).status, HealthCheckResponse::NOT_SERVING);
  local.backend.Release();
  EXPECT_TRUE(call.get().ok());
  EXPECT_TRUE(Await([&] { return ReadyzStatus(local) == 200; }));
}

TEST(HealthE2eTest, APostToTheAdminPortRetiresTheServer) {
  LocalServer local;
  const std::string id = local.CreateSequence();
  httplib::Client client("127.0.0.1", local.server->admin_port());
  EXPECT_EQ(client.Get("/drain")->status, 405);
  EXPECT_EQ(client.Post("/drain")->status, 202);
  grpc::ClientContext create_context;
  v1::CreateSequenceResponse created;
  EXPECT_EQ(local.stub->CreateSequence(&create_context, testing::OneLayer(), &created).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  // What it holds is served to its end.
  grpc::ClientContext context;
  v1::DecodeResponse response;
  EXPECT_TRUE(local.stub->Decode(&context, DecodeRequestOf(id, 0, 1), &response).ok());
  EXPECT_EQ(testing::ParseExposition(local.server->MetricsText()).Value("attnd_draining"), 1);
}

TEST(HealthE2eTest, ACallThatNeedsTooMuchIsRefusedAndNobodyElseNotices) {
  ServerConfig config = SmallConfig();
  config.workspace_bytes = std::int64_t{64} << 20;
  LocalServer local(config);
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::atomic<int> steps{0};
  std::vector<std::thread> decoders;
  for (int i = 0; i < 4; ++i) {
    decoders.emplace_back([&local, &stop, &wrong, &steps, id = local.CreateSequence()] {
      for (int position = 0; position < 4000 && !stop.load(); ++position) {
        grpc::ClientContext context;
        v1::DecodeResponse response;
        const bool ok =
            local.stub->Decode(&context, DecodeRequestOf(id, position, 0.5F), &response).ok();
        bool right = ok;
        for (const float value : FloatsOf(response.o())) {
          right = right && std::abs(value - 0.5F) < 1e-5F;
        }
        if (!right) ++wrong;
        ++steps;
      }
    });
  }
  // Naive attention materialises 2 heads x 12,000 x 12,000 FP32 scores: 1.1 GiB.
  auto request = AttendRequestOf(12'000, 12'000, 1);
  request.mutable_execution()->set_algorithm(v1::ALGORITHM_NAIVE);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Attend(local, request).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(Check(local, "").status, HealthCheckResponse::SERVING);
  }
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Attend(local, AttendRequestOf(1, 4, 1)).ok());
  EXPECT_TRUE(Await([&steps] { return steps.load() > 20; }));
  stop.store(true);
  for (std::thread& decoder : decoders) decoder.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(testing::ParseExposition(local.server->MetricsText())
                .Value("attnd_rejected_total", {{"reason", "workspace"}}),
            3);
}

std::int64_t EntriesOf(const char* folder) {
  std::int64_t entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++entries;
  return entries;
}

// Connects, opens a sequence, fills it, decodes and vanishes: every other time in mid-call.
void ConnectAndVanish(const LocalServer& local, bool cancel) {
  // A connection of its own.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto stub = v1::AttentionService::NewStub(grpc::CreateCustomChannel(
      local.server->address(), grpc::InsecureChannelCredentials(), arguments));
  v1::CreateSequenceResponse created;
  grpc::ClientContext create_context;
  ASSERT_TRUE(stub->CreateSequence(&create_context, testing::OneLayer(), &created).ok());
  for (int position = 0; position < 8; ++position) {
    grpc::ClientContext context;
    v1::DecodeResponse response;
    const auto request = DecodeRequestOf(created.sequence_id(), position, 1);
    ASSERT_TRUE(stub->Decode(&context, request, &response).ok());
  }
  grpc::ClientContext context;
  const auto stream = stub->DecodeStream(&context);
  stream->Write(DecodeRequestOf(created.sequence_id(), 8, 1));
  if (!cancel) {
    v1::DecodeResponse response;
    EXPECT_TRUE(stream->Read(&response));
  }
  context.TryCancel();
  stream->Finish();
}

TEST(HealthE2eTest, NothingGrowsWhenClientsComeAndVanish) {
  ServerConfig config = SmallConfig();
  config.default_lease = Milliseconds(200);
  LocalServer local(config);
  constexpr int kWarmUp = 200;
  constexpr int kCycles = 1000;
  std::int64_t resident_bytes = 0;
  std::int64_t threads = 0;
  std::int64_t descriptors = 0;
  for (int cycle = 0; cycle < kCycles; ++cycle) {
    if (cycle == kWarmUp) {
      ASSERT_TRUE(local.AwaitIdle());
      resident_bytes = ResidentBytes();
      threads = EntriesOf("/proc/self/task");
      descriptors = EntriesOf("/proc/self/fd");
    }
    ConnectAndVanish(local, cycle % 2 == 0);
  }
  ASSERT_TRUE(local.AwaitIdle());
  EXPECT_TRUE(Await([&] {
    const auto snapshot = local.server->GetSnapshot();
    return snapshot.pages_used == 0 && snapshot.sequences_active + snapshot.sequences_idle == 0;
  }));
  // gRPC's own pools grow and shrink by a few.
  EXPECT_TRUE(Await([&] { return EntriesOf("/proc/self/task") <= threads + 4; }));
  EXPECT_TRUE(Await([&] { return EntriesOf("/proc/self/fd") <= descriptors + 4; }));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LE(ResidentBytes() - resident_bytes, std::int64_t{8} << 20);
#else
  (void)resident_bytes;  // sanitizers keep freed memory
#endif
}

}  // namespace
}  // namespace attnd
