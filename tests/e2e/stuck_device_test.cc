// A device that stops making progress, seen from outside of a process that is attnd but for its
// device (tests/support/stoppable_device_main.cc): calls, both health protocols, metrics, the end.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <chrono>
#include <csignal>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "attnd/v1/attention.grpc.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/support/await.h"
#include "tests/support/exposition_parser.h"
#include "tests/support/local_calls.h"
#include "tests/support/local_server.h"
#include "tests/support/server_process.h"

namespace attnd::testing {
namespace {

using grpc::health::v1::HealthCheckResponse;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;
using ::testing::Not;

// What a loaded machine may add to a time that is promised.
constexpr seconds kSlack{3};

// What a call was answered, and when.
struct Answer {
  grpc::Status status;
  steady_clock::time_point came;
};

class StuckDeviceTest : public ::testing::Test {
 protected:
  void Start(const std::vector<std::string>& flags) {
    server_ = std::make_unique<ServerProcess>(ATTND_STOPPABLE, flags);
    const auto address = server_->AwaitServing();
    ASSERT_TRUE(address.has_value()) << server_->log();
    admin_ = "http://" + server_->admin_address();
    channel_ = grpc::CreateChannel(*address, grpc::InsecureChannelCredentials());
    stub_ = v1::AttentionService::NewStub(channel_);
    health_ = grpc::health::v1::Health::NewStub(channel_);
    watch_ = health_->Watch(&watch_context_, {});
    ASSERT_EQ(NextWatched(), HealthCheckResponse::SERVING);
    // A generation that goes well.
    const std::string id = CreateSequence();
    for (int position = 0; position < 4; ++position) {
      const grpc::Status status = Decode(id, position, seconds(10)).status;
      ASSERT_TRUE(status.ok()) << status.error_message();
    }
    ASSERT_EQ(HttpStatus("/readyz"), 200);
    ASSERT_EQ(Metric("attnd_ready"), 1);
    ASSERT_EQ(Metric("attnd_running_batches"), 0);
  }

  void TearDown() override {
    if (watch_ != nullptr) watch_context_.TryCancel();
  }

  // From here on nothing completes: two steps go to the device, a third one waits.
  void StopDevice() {
    for (int i = 0; i < 3; ++i) ids_.push_back(CreateSequence());
    server_->Signal(SIGUSR1);
    stopped_ = steady_clock::now();
    for (int batches = 1; batches <= 2; ++batches) {
      running_.push_back(DecodeLater(ids_[batches - 1]));
      ASSERT_TRUE(Await([&] { return Metric("attnd_running_batches") == batches; }));
    }
    waiting_ = DecodeLater(ids_[2]);
    ASSERT_TRUE(Await([&] { return Metric("attnd_queue_depth") == 1; }));
  }

  std::string CreateSequence() {
    grpc::ClientContext context;
    v1::CreateSequenceResponse response;
    const grpc::Status status = stub_->CreateSequence(&context, OneLayer(), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.sequence_id();
  }

  Answer Decode(const std::string& id, int position, milliseconds timeout) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(60));
    v1::DecodeRequest request = DecodeRequestOf(id, position, 1);
    request.mutable_execution()->mutable_timeout()->set_seconds(timeout.count() / 1000);
    request.mutable_execution()->mutable_timeout()->set_nanos(timeout.count() % 1000 * 1'000'000);
    v1::DecodeResponse response;
    const grpc::Status status = stub_->Decode(&context, request, &response);
    return {status, steady_clock::now()};
  }

  std::future<Answer> DecodeLater(const std::string& id) {
    return std::async(std::launch::async, [this, id] { return Decode(id, 0, seconds(60)); });
  }

  int HttpStatus(const std::string& path, std::string* body = nullptr) {
    const auto page = httplib::Client(admin_).Get(path);
    if (!page) return 0;
    if (body != nullptr) *body = page->body;
    return page->status;
  }

  double Metric(const std::string& name) {
    std::string text;
    EXPECT_EQ(HttpStatus("/metrics", &text), 200);
    return ParseExposition(text).Sum(name);
  }

  HealthCheckResponse::ServingStatus NextWatched() {
    HealthCheckResponse state;
    return watch_->Read(&state) ? state.status() : HealthCheckResponse::UNKNOWN;
  }

  HealthCheckResponse::ServingStatus Check() {
    grpc::ClientContext context;
    HealthCheckResponse state;
    EXPECT_TRUE(health_->Check(&context, {}, &state).ok());
    return state.status();
  }

  std::unique_ptr<ServerProcess> server_;
  std::string admin_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::AttentionService::Stub> stub_;
  std::unique_ptr<grpc::health::v1::Health::Stub> health_;
  grpc::ClientContext watch_context_;
  std::unique_ptr<grpc::ClientReader<HealthCheckResponse>> watch_;
  std::vector<std::string> ids_;
  steady_clock::time_point stopped_;
  std::vector<std::future<Answer>> running_;
  std::future<Answer> waiting_;
};

TEST_F(StuckDeviceTest, ShowsInReadinessAndMetricsWhileTheProcessLives) {
  Start({"--stall_limit=1s", "--stop_limit=2s", "--lame_duck=0"});
  StopDevice();
  EXPECT_EQ(NextWatched(), HealthCheckResponse::NOT_SERVING);
  const auto told = steady_clock::now() - stopped_;
  EXPECT_GE(told, seconds(1)) << "work that is only slow must not look like this";
  EXPECT_LT(told, seconds(1) + kSlack);
  EXPECT_EQ(Check(), HealthCheckResponse::NOT_SERVING);
  std::string body;
  EXPECT_EQ(HttpStatus("/readyz", &body), 503);
  EXPECT_THAT(body, HasSubstr("device stalled: work in flight and no completion for 1 s"));
  EXPECT_EQ(HttpStatus("/healthz"), 200) << "the process itself answers";
  // What the alerts AttndNotReady and AttndDeviceStuck read.
  EXPECT_EQ(Metric("attnd_ready"), 0);
  EXPECT_EQ(Metric("attnd_draining"), 0);
  EXPECT_EQ(Metric("attnd_running_batches"), 2);
  const double launches = Metric("attnd_kernel_launches_total");
  const double completed = Metric("attnd_last_kernel_completion_timestamp_seconds");
  EXPECT_GT(
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count() -
          completed,
      1);
  EXPECT_EQ(Metric("attnd_device_faults_total"), 0) << "nothing says that it failed";
  // New sequences are taken; a step waits, at most for its own timeout.
  const std::string id = CreateSequence();
  const auto asked = steady_clock::now();
  const Answer late = Decode(id, 0, milliseconds(300));
  EXPECT_EQ(late.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(DetailOf(late.status).reason(), v1::REASON_DEADLINE);
  EXPECT_GE(late.came - asked, milliseconds(300));
  EXPECT_LT(late.came - asked, milliseconds(300) + kSlack);
  EXPECT_EQ(Metric("attnd_kernel_launches_total"), launches);
  for (auto& call : running_) {
    EXPECT_EQ(call.wait_for(seconds(0)), std::future_status::timeout) << "may still complete";
  }
  server_->Signal(SIGKILL);
  server_->AwaitExit();
}

TEST_F(StuckDeviceTest, SigtermEndsTheProcessWithinItsLimit) {
  Start({"--stall_limit=500ms", "--stop_limit=3s", "--lame_duck=0"});
  StopDevice();
  ASSERT_EQ(NextWatched(), HealthCheckResponse::NOT_SERVING);
  const auto asked = steady_clock::now();
  server_->Signal(SIGTERM);
  const Answer waited = waiting_.get();
  EXPECT_EQ(waited.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(DetailOf(waited.status).reason(), v1::REASON_DRAINING);
  EXPECT_EQ(server_->AwaitExit(), 1) << server_->log();
  const auto took = steady_clock::now() - asked;
  EXPECT_LT(took, seconds(3) + kSlack);
  EXPECT_LT(waited.came - asked, took);
  EXPECT_THAT(server_->log(), HasSubstr("not stopped within --stop_limit: exiting"));
  for (auto& call : running_) {
    EXPECT_EQ(call.get().status.error_code(), grpc::StatusCode::UNAVAILABLE);
  }
}

TEST_F(StuckDeviceTest, ASecondSigtermEndsItAtOnce) {
  Start({"--stall_limit=500ms", "--stop_limit=60s", "--lame_duck=0"});
  StopDevice();
  server_->Signal(SIGTERM);
  EXPECT_TRUE(Await([&] { return HttpStatus("/readyz") == 503; }));
  const auto asked = steady_clock::now();
  server_->Signal(SIGTERM);
  EXPECT_EQ(server_->AwaitExit(), 1) << server_->log();
  EXPECT_LT(steady_clock::now() - asked, kSlack);
}

TEST_F(StuckDeviceTest, AStallAsLongAsStallExitEndsTheProcessForItsSupervisor) {
  Start({"--stall_limit=500ms", "--stall_exit=2s", "--stop_limit=2s", "--lame_duck=0"});
  StopDevice();
  const Answer waited = waiting_.get();
  EXPECT_EQ(waited.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(DetailOf(waited.status).reason(), v1::REASON_DRAINING);
  EXPECT_EQ(server_->AwaitExit(), 3) << server_->log();
  const auto took = steady_clock::now() - stopped_;
  EXPECT_GE(took, seconds(2));
  EXPECT_LT(took, seconds(2) + seconds(2) + kSlack);
  EXPECT_THAT(server_->log(), HasSubstr("completed nothing for --stall_exit"));
}

TEST_F(StuckDeviceTest, StallExitLeavesADeviceAloneThatIsIdle) {
  Start({"--stall_limit=100ms", "--stall_exit=1500ms", "--lame_duck=0"});
  std::this_thread::sleep_for(seconds(3));
  EXPECT_TRUE(Decode(CreateSequence(), 0, seconds(10)).status.ok());
  server_->Signal(SIGTERM);
  EXPECT_EQ(server_->AwaitExit(), 0) << server_->log();
  EXPECT_THAT(server_->log(), Not(HasSubstr("stall_exit")));
}

// The driver gives up one launch; the other one hangs, and with it all that would end in order.
TEST_F(StuckDeviceTest, AFaultEndsTheProcessWithItsCodeThoughAnotherLaunchHangs) {
  Start({"--stall_limit=30s", "--stop_limit=2s", "--lame_duck=0"});
  StopDevice();
  const auto failed = steady_clock::now();
  server_->Signal(SIGUSR2);
  const Answer met = running_[0].get();
  EXPECT_EQ(met.status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(DetailOf(met.status).reason(), v1::REASON_DEVICE_FAULT);
  EXPECT_THAT(met.status.error_message(), HasSubstr("the launch timed out and was terminated"));
  EXPECT_LT(met.came - failed, kSlack);
  const Answer waited = waiting_.get();
  EXPECT_EQ(waited.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(DetailOf(waited.status).reason(), v1::REASON_DEVICE_FAULT);
  EXPECT_EQ(NextWatched(), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(running_[1].get().status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(server_->AwaitExit(), 3) << server_->log();
  EXPECT_LT(steady_clock::now() - failed, seconds(2) + kSlack);
  EXPECT_THAT(server_->log(), HasSubstr("the device has failed: stopping, exit code 3"));
}

}  // namespace
}  // namespace attnd::testing
