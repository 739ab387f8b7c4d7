// The client against a scripted server, with time that moves only when the client waits.
#include "client/attention_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/fake_attention_server.h"
#include "tests/support/manual_time.h"

namespace attnd::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;

class AttentionClientTest : public ::testing::Test {
 protected:
  ClientOptions Options() {
    ClientOptions options;
    options.transport.target = server_.target();
    options.retry.jitter = 0;
    options.time = time_;
    options.random_seed = 1;
    return options;
  }
  static AttendRequest SmallRequest() {
    AttendRequest request;
    request.q = *TensorFromFloats(v1::DATA_TYPE_FP32, {1, 1, 2}, std::vector<float>{1, 2});
    request.k = request.v = request.q;
    return request;
  }

  FakeAttentionServer server_;
  std::shared_ptr<ManualTime> time_ = std::make_shared<ManualTime>(ManualTime::Mode::kAutomatic);
};

TEST_F(AttentionClientTest, TensorsTravelThereAndBack) {
  AttentionClient client(Options());
  std::vector<float> values(300'000);
  std::iota(values.begin(), values.end(), 0.0F);
  AttendRequest request;
  request.q = *TensorFromFloats(v1::DATA_TYPE_FP32, {300, 10, 100}, values);
  request.k = request.v = request.q;
  const auto result = client.Attend(request);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(*FloatsFromTensor(result->o), values);
  EXPECT_EQ(result->execution.kernels(0), "fake/attend");
}

TEST_F(AttentionClientTest, PushbackIsObeyedToTheMillisecond) {
  server_.Script({{.code = grpc::StatusCode::RESOURCE_EXHAUSTED,
                   .detail = DetailWithDelay(v1::REASON_QUEUE_FULL, milliseconds(700)),
                   .pushback = "700"},
                  {.code = grpc::StatusCode::UNAVAILABLE, .pushback = "30"}});
  AttentionClient client(Options());
  EXPECT_TRUE(client.Attend(SmallRequest()).ok());
  EXPECT_EQ(server_.calls(), 3);
  EXPECT_THAT(time_->waits(), ElementsAre(milliseconds(700), milliseconds(30)));
}

TEST_F(AttentionClientTest, RetryDelayWithoutPushbackIsObeyed) {
  server_.Script({{.code = grpc::StatusCode::RESOURCE_EXHAUSTED,
                   .detail = DetailWithDelay(v1::REASON_CACHE_FULL, milliseconds(2500))}});
  AttentionClient client(Options());
  EXPECT_TRUE(client.Attend(SmallRequest()).ok());
  EXPECT_THAT(time_->waits(), ElementsAre(milliseconds(2500)));
}

TEST_F(AttentionClientTest, FinalFailuresAreTriedOnce) {
  const std::vector<ScriptedAnswer> finals{
      {.code = grpc::StatusCode::INVALID_ARGUMENT},
      {.code = grpc::StatusCode::UNAVAILABLE, .pushback = "-1"},
      {.code = grpc::StatusCode::UNAVAILABLE, .pushback = "soon"},
      {.code = grpc::StatusCode::RESOURCE_EXHAUSTED},
      {.code = grpc::StatusCode::UNAVAILABLE, .detail = DetailWithDelay(v1::REASON_DEVICE_FAULT)},
      {.code = grpc::StatusCode::INTERNAL}};
  AttentionClient client(Options());
  for (const ScriptedAnswer& answer : finals) {
    server_.Script({answer});
    const std::int64_t before = server_.calls();
    EXPECT_EQ(static_cast<int>(client.Attend(SmallRequest()).status().code()), answer.code);
    EXPECT_EQ(server_.calls(), before + 1);
  }
  EXPECT_TRUE(time_->waits().empty());
}

TEST_F(AttentionClientTest, ErrorsCarryTheServersDetail) {
  v1::ErrorDetail detail = DetailWithDelay(v1::REASON_POSITION);
  detail.set_step_index(3);
  detail.set_cached_tokens(41);
  server_.Script({{.code = grpc::StatusCode::FAILED_PRECONDITION, .detail = detail}});
  AttentionClient client(Options());
  const CallError error = DescribeError(client.Decode(DecodeRequest()).status());
  EXPECT_EQ(error.code, absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(error.reason, v1::REASON_POSITION);
  EXPECT_EQ(error.detail.step_index(), 3);
  EXPECT_EQ(error.detail.cached_tokens(), 41);
}

TEST_F(AttentionClientTest, RetriesStopBeforeTheDeadline) {
  server_.SetRule([](std::int64_t) {
    return ScriptedAnswer{.code = grpc::StatusCode::UNAVAILABLE, .pushback = "400"};
  });
  AttentionClient client(Options());
  const TimePoint start = time_->Now();
  const auto result = client.Attend(SmallRequest(), {.timeout = seconds(1)});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable) << "the last failure is told";
  EXPECT_EQ(server_.calls(), 3);
  EXPECT_LT(time_->Now() - start, seconds(1));
}

TEST_F(AttentionClientTest, TheBudgetIsSharedByAllCalls) {
  server_.SetRule([](std::int64_t) {
    return ScriptedAnswer{.code = grpc::StatusCode::UNAVAILABLE, .pushback = "0"};
  });
  ClientOptions options = Options();
  options.retry.budget_tokens = 5;
  options.retry.tokens_per_second = 0;
  AttentionClient client(options);
  for (int call = 0; call < 10; ++call) EXPECT_FALSE(client.Attend(SmallRequest()).ok());
  EXPECT_EQ(server_.calls(), 10 + 5);
}

TEST_F(AttentionClientTest, ASilentServerEndsInDeadlineExceeded) {
  server_.CloseGate();
  ClientOptions options = Options();
  options.time = SystemTime();
  AttentionClient client(options);
  const auto start = std::chrono::steady_clock::now();
  const auto result = client.Attend(SmallRequest(), {.timeout = milliseconds(150)});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(150));
}

TEST_F(AttentionClientTest, RepeatedCreationCarriesOneKey) {
  server_.Script({{.code = grpc::StatusCode::UNAVAILABLE, .pushback = "1"}});
  AttentionClient client(Options());
  ASSERT_TRUE(client.CreateSequence({}).ok());
  ASSERT_TRUE(client.CreateSequence({}).ok());
  const std::vector<std::string> keys = server_.creation_keys();
  ASSERT_EQ(keys.size(), 3U);
  EXPECT_EQ(keys[0].size(), 16U);
  EXPECT_EQ(keys[0], keys[1]) << "a repetition must find the sequence that the first attempt made";
  EXPECT_NE(keys[1], keys[2]);
}

TEST_F(AttentionClientTest, CallsSpreadOverConnections) {
  ClientOptions options = Options();
  options.transport.connections = 4;
  AttentionClient client(options);
  for (int call = 0; call < 16; ++call) ASSERT_TRUE(client.GetServerInfo().ok());
  const std::vector<std::string> peers = server_.peers();
  EXPECT_EQ(std::set<std::string>(peers.begin(), peers.end()).size(), 4U);
}

// Requests of 12.6 MB and a reply just over gRPC's default limit of 4 MiB.
TEST_F(AttentionClientTest, MessagesBeyondTheDefaultLimitsPass) {
  AttentionClient client(Options());
  const std::int64_t tokens = 1025;
  std::vector<float> values(static_cast<std::size_t>(tokens * 8 * 128));
  std::iota(values.begin(), values.end(), 0.0F);
  AttendRequest request;
  request.q = *TensorFromFloats(v1::DATA_TYPE_FP32, {tokens, 8, 128}, values);
  request.k = request.v = request.q;
  const auto result = client.Attend(request);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->o.size_bytes, 4'194'304);
  EXPECT_EQ(*FloatsFromTensor(result->o), values);
}

TEST_F(AttentionClientTest, ARestartedServerIsReachedWithinFiveSeconds) {
  ClientOptions options = Options();
  options.time = SystemTime();
  AttentionClient client(options);
  ASSERT_TRUE(client.GetServerInfo().ok());
  const int port = server_.port();
  server_.Stop();
  EXPECT_FALSE(client.GetServerInfo({.timeout = milliseconds(200)}).ok());
  server_.Start(port);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(client.GetServerInfo({.timeout = seconds(10)}).ok());
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(5));
}

TEST_F(AttentionClientTest, AnAbsentServerIsReportedByTheDeadline) {
  ClientOptions options = Options();
  options.time = SystemTime();
  server_.Stop();
  AttentionClient client(options);
  const auto result = client.GetServerInfo({.timeout = milliseconds(300)});
  EXPECT_THAT(result.status().code(), ::testing::AnyOf(absl::StatusCode::kUnavailable,
                                                       absl::StatusCode::kDeadlineExceeded));
}

TEST_F(AttentionClientTest, CallsFromManyThreadsEndOnce) {
  server_.SetRule([](std::int64_t call) {
    return call % 3 == 0 ? ScriptedAnswer{.code = grpc::StatusCode::UNAVAILABLE, .pushback = "1"}
                         : ScriptedAnswer{};
  });
  ClientOptions options = Options();
  options.retry.budget_tokens = 1e6;
  options.transport.connections = 2;
  AttentionClient client(options);
  std::atomic<int> succeeded{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int call = 0; call < 50; ++call) succeeded += client.Attend(SmallRequest()).ok() ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(succeeded.load(), 200);
}

TEST_F(AttentionClientTest, RenewalsReportWhatIsLost) {
  v1::Status gone;
  gone.set_code(grpc::StatusCode::NOT_FOUND);
  server_.FailRenewal("gone", gone);
  std::vector<std::string> lost;
  // The system's clock: with the automatic one the keeper would renew without a pause.
  ClientOptions options = Options();
  options.time = SystemTime();
  AttentionClient keeping(options);
  const auto keeper = keeping.KeepLeases(
      {.on_lost = [&](const std::string& id, const absl::Status&) { lost.push_back(id); }});
  keeper->Add("gone");
  keeper->Add("here");
  EXPECT_TRUE(keeper->RenewNow().ok());
  EXPECT_THAT(lost, ElementsAre("gone"));
  EXPECT_EQ(server_.renewals().size(), 1U);
}

}  // namespace
}  // namespace attnd::client
