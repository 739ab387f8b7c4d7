// Calls and streams that end early, in the middle or not at all: work for nobody is not launched,
// nothing of them stays, and the process does not grow.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/await.h"
#include "tests/support/exposition_parser.h"
#include "tests/support/local_server.h"
#include "tests/support/raw_stream.h"
#include "tests/support/tcp_relay.h"

namespace attnd::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AnyOf;

using Stream = grpc::ClientReaderWriter<v1::DecodeRequest, v1::DecodeResponse>;
using Stub = v1::AttentionService::Stub;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

int NumThreads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

grpc::Status Attend(LocalServer& local) {
  grpc::ClientContext context;
  v1::AttendResponse response;
  return local.stub->Attend(&context, AttendRequestOf(1, 1, 1), &response);
}

std::int64_t CachedTokens(LocalServer& local, const std::string& id) {
  grpc::ClientContext context;
  v1::GetSequenceRequest request;
  request.set_sequence_id(id);
  v1::Sequence sequence;
  EXPECT_TRUE(local.stub->GetSequence(&context, request, &sequence).ok());
  return sequence.layer_tokens_size() == 1 ? sequence.layer_tokens(0) : -1;
}

double Answers(LocalServer& local, const char* method, const char* code) {
  return ParseExposition(local.server->MetricsText())
      .Value("attnd_requests_total", {{"method", method}, {"code", code}})
      .value_or(0);
}

// The device is busy with two batches, whose callers wait.
class BusyDevice {
 public:
  explicit BusyDevice(LocalServer& local) : local_(local) {
    local.backend.Hold();
    for (int i = 0; i < 2; ++i) {
      callers_.emplace_back([&local] { EXPECT_TRUE(Attend(local).ok()); });
      local.backend.AwaitBatches(i + 1);
    }
  }
  ~BusyDevice() {
    local_.backend.Release();
    for (std::thread& caller : callers_) caller.join();
  }
  BusyDevice(const BusyDevice&) = delete;
  BusyDevice& operator=(const BusyDevice&) = delete;

 private:
  LocalServer& local_;
  std::vector<std::thread> callers_;
};

// Calls Decode for each of 20 fresh sequences at once, with what `prepare` sets. All end with
// `code` at the client and on the server, and nothing of them is ever launched.
void ExpectNeverLaunched(
    LocalServer& local, Stub& stub, grpc::StatusCode code, const char* name,
    const std::function<void(grpc::ClientContext&, v1::DecodeRequest&)>& prepare,
    const std::function<void(grpc::ClientContext&)>& when_waiting) {
  constexpr int kCalls = 20;
  std::vector<std::string> ids;
  for (int i = 0; i < kCalls; ++i) ids.push_back(local.CreateSequence());
  {
    const BusyDevice busy(local);
    std::vector<grpc::ClientContext> contexts(kCalls);
    std::vector<std::thread> callers;
    for (int i = 0; i < kCalls; ++i) {
      callers.emplace_back([&, i] {
        v1::DecodeResponse response;
        auto request = DecodeRequestOf(ids[i], 0, 1);
        prepare(contexts[i], request);
        EXPECT_EQ(stub.Decode(&contexts[i], request, &response).error_code(), code);
      });
    }
    EXPECT_TRUE(Await([&local] { return local.server->GetSnapshot().queue_requests == kCalls; }));
    for (grpc::ClientContext& context : contexts) when_waiting(context);
    for (std::thread& caller : callers) caller.join();
    EXPECT_TRUE(Await([&local] { return local.server->live_calls() == 2; }));
    EXPECT_EQ(local.server->GetSnapshot().queue_requests, 0);
  }
  EXPECT_TRUE(local.AwaitIdle());
  EXPECT_EQ(local.backend.batches(), 2);
  for (const std::string& id : ids) EXPECT_EQ(CachedTokens(local, id), 0);
  EXPECT_EQ(Answers(local, "Decode", name), kCalls);
  EXPECT_EQ(Answers(local, "Decode", "OK"), 0);
  EXPECT_EQ(local.server->GetSnapshot().pages_used, 0) << "pages set aside were given back";
  EXPECT_TRUE(Attend(local).ok());
  EXPECT_EQ(local.backend.batches(), 3);
}

TEST(LifecycleCasesTest, WorkPastItsOwnTimeoutIsNeverLaunched) {
  LocalServer local;
  ExpectNeverLaunched(
      local, *local.stub, grpc::StatusCode::DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED",
      [](grpc::ClientContext&, v1::DecodeRequest& request) {
        request.mutable_execution()->mutable_timeout()->set_nanos(400'000'000);
      },
      [](grpc::ClientContext&) {});
}

// A client resets its call when the deadline passes on its own clock. Here that does not reach the
// server, which has only its own clock.
TEST(LifecycleCasesTest, WorkPastTheCallsDeadlineIsNeverLaunched) {
  LocalServer local;
  TcpRelay relay(local.server->port());
  const auto stub = v1::AttentionService::NewStub(
      grpc::CreateChannel(relay.address(), grpc::InsecureChannelCredentials()));
  std::once_flag hold;
  ExpectNeverLaunched(
      local, *stub, grpc::StatusCode::DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED",
      [](grpc::ClientContext& context, v1::DecodeRequest&) {
        context.set_deadline(std::chrono::system_clock::now() + milliseconds(1'500));
      },
      [&](grpc::ClientContext&) { std::call_once(hold, [&relay] { relay.HoldRequests(); }); });
}

TEST(LifecycleCasesTest, CancelledWorkIsNeverLaunchedAndCountsAsCancelled) {
  LocalServer local;
  ExpectNeverLaunched(
      local, *local.stub, grpc::StatusCode::CANCELLED, "CANCELLED",
      [](grpc::ClientContext& context, v1::DecodeRequest&) {
        context.set_deadline(std::chrono::system_clock::now() + seconds(30));
      },
      [](grpc::ClientContext& context) { context.TryCancel(); });
}

// How a client of a long generation goes away.
enum class Leaving { kCancel, kLostConnection };

// Eight clients in turn. Each is gone at a moment at which the device is busy with its work.
void LeaveInTheMiddle(Leaving leaving) {
  ServerConfig config = SmallConfig();
  config.max_in_flight_per_stream = 4;
  LocalServer local(config);
  for (int client = 0; client < 8; ++client) {
    const std::string id = local.CreateSequence();
    TcpRelay relay(local.server->port());
    const auto stub = v1::AttentionService::NewStub(
        grpc::CreateChannel(relay.address(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    const auto stream = stub->DecodeStream(&context);
    std::atomic<int> written{0};
    std::thread writer([&] {
      for (int i = 0; i < 4000 && stream->Write(DecodeRequestOf(id, i, 1)); ++i) ++written;
    });
    v1::DecodeResponse response;
    for (int i = 0; i < 10; ++i) {
      EXPECT_TRUE(stream->Read(&response));
      EXPECT_EQ(response.status().code(), 0) << response.status().message();
    }
    local.backend.Hold();
    if (leaving == Leaving::kCancel) context.TryCancel();
    if (leaving == Leaving::kLostConnection) relay.Cut();
    writer.join();
    EXPECT_THAT(stream->Finish().error_code(),
                AnyOf(grpc::StatusCode::CANCELLED, grpc::StatusCode::UNAVAILABLE));
    // Steps of one sequence run one by one: what the device has is all that may still run. An open
    // stream keeps steps waiting behind the held one; none for a while means that the server knows.
    int empty_polls = 0;
    ASSERT_TRUE(Await([&local, &empty_polls] {
      empty_polls = local.server->GetSnapshot().queue_requests == 0 ? empty_polls + 1 : 0;
      return empty_polls >= 50;
    }));
    const std::int64_t launched = local.backend.batches();
    local.backend.Release();
    ASSERT_TRUE(local.AwaitIdle());
    EXPECT_LE(local.backend.batches(), launched + 4) << "those read just before";
    EXPECT_LT(CachedTokens(local, id), 4000) << "it left in the middle";
  }
  EXPECT_EQ(local.server->GetSnapshot().sequences_active, 0);
  EXPECT_EQ(Answers(local, "DecodeStream", "RESOURCE_EXHAUSTED"), 0);
}

TEST(LifecycleCasesTest, ACancelledStreamStopsItsWork) { LeaveInTheMiddle(Leaving::kCancel); }

TEST(LifecycleCasesTest, ALostConnectionStopsItsWork) {
  LeaveInTheMiddle(Leaving::kLostConnection);
}

TEST(LifecycleCasesTest, AnOpenStreamIsToldOfAStopWhileAdmittedWorkFinishes) {
  LocalServer local;
  local.backend.Hold();
  std::thread admitted([&local] { EXPECT_TRUE(Attend(local).ok()); });
  local.backend.AwaitBatches(1);
  grpc::ClientContext context;
  const auto stream = local.stub->DecodeStream(&context);
  ASSERT_TRUE(Await([&local] { return local.server->live_calls() == 2; }));
  std::thread stopper([&local] { local.server->Stop(); });
  ASSERT_TRUE(Await([&local] {
    grpc::ClientContext info_context;
    v1::GetServerInfoResponse info;
    return !local.stub->GetServerInfo(&info_context, {}, &info).ok();
  }));
  v1::DecodeResponse response;
  ASSERT_TRUE(stream->Write(DecodeRequestOf("any", 0, 1)));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.status().code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(response.status().detail().reason(), v1::REASON_DRAINING);
  EXPECT_TRUE(response.status().detail().has_retry_delay());
  local.backend.Release();
  admitted.join();
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  stopper.join();
}

const std::string& Chunk() {
  static const std::string chunk(kMiB, 'x');
  return chunk;
}

TEST(LifecycleCasesTest, AnUnparsableMessageStopsTheReadingOfAStreamAtOnce) {
  LocalServer local;
  const std::string id = local.CreateSequence();
  local.backend.Hold();
  RawStream stream(local.channel);
  // What was admitted before is still to be answered, so that the stream cannot end yet.
  ASSERT_TRUE(stream.Write(DecodeRequestOf(id, 0, 1).SerializeAsString()));
  local.backend.AwaitBatches(1);
  ASSERT_TRUE(stream.Write("\x0A\xFF"));
  int chunks = 0;
  while (chunks < 64 && stream.Write(Chunk())) ++chunks;
  EXPECT_LT(chunks, 64) << "the server reads on, or buffers";
  EXPECT_TRUE(stream.blocked());
  local.backend.Release();
  EXPECT_TRUE(stream.Read()) << "the answer of what was admitted";
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(local.AwaitIdle());
}

TEST(LifecycleCasesTest, RepliesThatNobodyReadsBoundWhatIsReceived) {
  ServerConfig config = SmallConfig();
  config.max_in_flight_per_stream = 4;
  LocalServer local(config);
  const std::string id = local.CreateSequence();
  // Each reply holds 32 KiB: a few hundred of them fit what the connection buffers.
  v1::DecodeRequest request = DecodeRequestOf(id, 0, 1);
  constexpr int kTokens = 1024;
  request.mutable_steps(0)->set_num_tokens(kTokens);
  for (v1::Tensor* tensor : {request.mutable_q(), request.mutable_k(), request.mutable_v()}) {
    tensor->set_shape(0, kTokens);
    tensor->set_data(std::string(kTokens * 2 * 4 * sizeof(float), '\0'));
  }
  const std::string bytes = request.SerializeAsString();
  RawStream stream(local.channel);
  int written = 0;
  while (written < 2000 && stream.Write(bytes)) ++written;
  EXPECT_LT(written, 2000);
  EXPECT_TRUE(stream.blocked());
  EXPECT_LE(local.server->GetSnapshot().queue_requests, 4);
}

TEST(LifecycleCasesTest, TwoThousandIdleStreamsTakeNoThreads) {
  LocalServer local;
  ASSERT_TRUE(Attend(local).ok());
  const int threads = NumThreads();
  constexpr int kStreams = 2'000;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < kStreams; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    streams.push_back(local.stub->DecodeStream(contexts.back().get()));
  }
  ASSERT_TRUE(Await([&local] { return local.server->live_calls() == kStreams; }));
  for (int probe = 0; probe < 50; ++probe) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(1));
    v1::AttendResponse response;
    const auto status = local.stub->Attend(&context, AttendRequestOf(1, 1, 1), &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  EXPECT_LE(NumThreads(), threads + 16);
  EXPECT_EQ(ParseExposition(local.server->MetricsText()).Value("attnd_open_streams"), kStreams);
  for (auto& context : contexts) context->TryCancel();
  for (auto& stream : streams) stream->Finish();
  EXPECT_TRUE(local.AwaitIdle());
}

TEST(LifecycleCasesTest, ExactlyTheAllowedUnaryCallsAreServed) {
  ServerConfig config = SmallConfig();
  config.max_unary_in_flight = 8;
  LocalServer local(config);
  local.backend.Hold();
  std::atomic<int> served{0};
  std::atomic<int> refused{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 12; ++i) {
    callers.emplace_back([&] {
      const auto code = Attend(local).error_code();
      if (code == grpc::StatusCode::OK) ++served;
      if (code == grpc::StatusCode::RESOURCE_EXHAUSTED) ++refused;
    });
  }
  EXPECT_TRUE(Await([&] { return refused == 4; }));
  EXPECT_EQ(served, 0);
  local.backend.Release();
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(served, 8);
  EXPECT_EQ(refused, 4);
}

TEST(LifecycleCasesTest, AsManyCallersAsAllowedAreNeverRefused) {
  ServerConfig config = SmallConfig();
  config.max_unary_in_flight = 8;
  LocalServer local(config);
  std::atomic<int> failed{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 8; ++i) {
    callers.emplace_back([&] {
      for (int call = 0; call < 500; ++call) {
        if (!Attend(local).ok()) ++failed;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(failed, 0);
}

}  // namespace
}  // namespace attnd::testing
