// Attend and Decode are admitted before their message is received: calls that send it late, never,
// or find no place for it.
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "server/arrival_places.h"
#include "tests/support/await.h"
#include "tests/support/exposition_parser.h"
#include "tests/support/local_calls.h"
#include "tests/support/local_server.h"
#include "tests/support/raw_stream.h"

namespace attnd::testing {
namespace {

std::shared_ptr<grpc::Channel> Connect(const LocalServer& local) {
  return grpc::CreateChannel(local.server->address(), grpc::InsecureChannelCredentials());
}

ServerConfig OnePlace() {
  ServerConfig config = SmallConfig();
  config.max_queue_requests = 1;
  return config;
}

// Until the server holds so many calls.
bool AwaitCalls(const LocalServer& local, std::int64_t calls) {
  return Await([&] { return local.server->live_calls() == calls; });
}

TEST(UnreadCallsTest, ACallWithoutAPlaceIsRefusedBeforeItsMessage) {
  const LocalServer local(OnePlace());
  const std::string message = AttendRequestOf(3, 5, 1).SerializeAsString();
  for (const char* method : {"Attend", "Decode"}) {
    std::vector<std::unique_ptr<RawStream>> silent;  // hold all places, have sent nothing
    for (std::int64_t i = 0; i < 1 + ArrivalPlaces::kBeyondLimit; ++i) {
      silent.push_back(std::make_unique<RawStream>(Connect(local), "Attend"));
    }
    ASSERT_TRUE(AwaitCalls(local, 1 + ArrivalPlaces::kBeyondLimit));
    RawStream one_more(Connect(local), method);
    one_more.WritesDone();
    EXPECT_FALSE(one_more.Read());
    const grpc::Status refused = one_more.Finish();
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED)
        << refused.error_message();
    EXPECT_EQ(DetailOf(refused).reason(), v1::REASON_QUEUE_FULL);
    EXPECT_TRUE(DetailOf(refused).has_retry_delay());
    EXPECT_TRUE(silent[0]->Write(message));
    silent[0]->WritesDone();
    EXPECT_TRUE(silent[0]->Read());
    EXPECT_TRUE(silent[0]->Finish().ok());
    silent.clear();
    EXPECT_TRUE(local.AwaitIdle());
  }
  EXPECT_TRUE(local.AwaitIdle());
}

TEST(UnreadCallsTest, ACallThatEndsWithoutAMessageIsInvalid) {
  const LocalServer local;
  for (const char* method : {"Attend", "Decode"}) {
    RawStream call(Connect(local), method);
    call.WritesDone();
    EXPECT_FALSE(call.Read());
    const grpc::Status status = call.Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    EXPECT_EQ(DetailOf(status).reason(), v1::REASON_INVALID_FIELD);
  }
  EXPECT_TRUE(local.AwaitIdle());
}

// Their places are free again at once.
TEST(UnreadCallsTest, CallsThatAreCancelledBeforeTheirMessageLeaveNothing) {
  const LocalServer local(OnePlace());
  for (int i = 0; i < 20; ++i) {
    RawStream call(Connect(local), i % 2 == 0 ? "Attend" : "Decode");
    call.Cancel();
    EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(local.AwaitIdle());
  grpc::ClientContext context;
  v1::AttendResponse response;
  EXPECT_TRUE(local.stub->Attend(&context, AttendRequestOf(3, 5, 1), &response).ok());
}

// Answers that were counted with this code.
double Counted(const LocalServer& local, const char* method, const char* code) {
  return ParseExposition(local.server->MetricsText())
      .Value("attnd_requests_total", {{"method", method}, {"code", code}})
      .value_or(0);
}

TEST(UnreadCallsTest, CancelledCallsAreCountedAsCancelled) {
  const LocalServer local;
  constexpr int kCalls = 200;
  for (int i = 0; i < kCalls; ++i) {
    RawStream call(Connect(local), "Attend");
    ASSERT_TRUE(AwaitCalls(local, 1));
    call.Cancel();
    EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::CANCELLED);
    ASSERT_TRUE(local.AwaitIdle());
  }
  EXPECT_EQ(Counted(local, "Attend", "INVALID_ARGUMENT"), 0);
  EXPECT_EQ(Counted(local, "Attend", "CANCELLED"), kCalls);
}

// Each call has no message yet when the other one's begins.
TEST(UnreadCallsTest, AQueueOfOnePlaceTakesTwoCallsThatReachAnIdleServerTogether) {
  const LocalServer local(OnePlace());
  const std::string message = AttendRequestOf(3, 5, 1).SerializeAsString();
  RawStream first(Connect(local), "Attend");
  RawStream second(Connect(local), "Attend");
  ASSERT_TRUE(AwaitCalls(local, 2));
  for (RawStream* call : {&first, &second}) {
    EXPECT_TRUE(call->Write(message));
    call->WritesDone();
    EXPECT_TRUE(call->Read());
    const grpc::Status status = call->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  EXPECT_TRUE(local.AwaitIdle());
}

TEST(UnreadCallsTest, CallsWithoutAMessageDoNotFillTheLimitOfUnaryCalls) {
  ServerConfig config = SmallConfig();
  config.max_unary_in_flight = 1;
  const LocalServer local(config);
  RawStream silent(Connect(local), "Attend");
  ASSERT_TRUE(AwaitCalls(local, 1));
  const grpc::Status status = Attend(local, AttendRequestOf(3, 5, 1));
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST(UnreadCallsTest, ACallWithoutAMessageEndsWithTheServer) {
  const LocalServer local;
  RawStream silent(Connect(local), "Decode");
  ASSERT_TRUE(AwaitCalls(local, 1));
  const auto begin = std::chrono::steady_clock::now();
  local.server->Stop();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5))
      << "of 20 that a stop may take";
  EXPECT_FALSE(silent.Read());
  EXPECT_FALSE(silent.Finish().ok());
  EXPECT_EQ(local.server->live_calls(), 0);
}

}  // namespace
}  // namespace attnd::testing
