// Calls and streams that end early, in the middle or not at all: work for nobody is not launched,
// nothing of them stays, and the process does not grow.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/exposition_parser.h"
#include "tests/support/local_server.h"
#include "tests/support/tcp_relay.h"

namespace attnd::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::AnyOf;

using Stream = grpc::ClientReaderWriter<v1::DecodeRequest, v1::DecodeResponse>;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

template <typename Condition>
bool Await(Condition condition) {
  const auto give_up = steady_clock::now() + seconds(10);
  while (!condition()) {
    if (steady_clock::now() > give_up) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

int NumThreads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

std::int64_t ResidentBytes() {
  malloc_trim(0);
  std::ifstream file("/proc/self/statm");
  std::int64_t total_pages = 0;
  std::int64_t resident_pages = 0;
  file >> total_pages >> resident_pages;
  return resident_pages * 4096;
}

// Memory of a run under a sanitizer says nothing: freed blocks are kept.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMemoryIsTrue = false;
#else
constexpr bool kMemoryIsTrue = true;
#endif

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

TEST(LifecycleCasesTest, ExpiredWorkIsNeverLaunched) {
  LocalServer local;
  local.backend.Hold();
  // The device is busy with two batches of ours, whose callers wait.
  std::vector<std::thread> callers;
  for (int i = 0; i < 2; ++i) {
    callers.emplace_back([&local] { EXPECT_TRUE(Attend(local).ok()); });
    local.backend.AwaitBatches(i + 1);
  }
  std::vector<std::string> ids;
  for (int i = 0; i < 20; ++i) ids.push_back(local.CreateSequence());
  for (int i = 0; i < 20; ++i) {
    callers.emplace_back([&local, &id = ids[i], i] {
      grpc::ClientContext context;
      v1::DecodeResponse response;
      auto request = DecodeRequestOf(id, 0, 1);
      // One half by the call's deadline, one half by the request's own.
      if (i % 2 == 0) {
        context.set_deadline(std::chrono::system_clock::now() + milliseconds(200));
      } else {
        request.mutable_execution()->mutable_timeout()->set_nanos(200'000'000);
      }
      EXPECT_EQ(local.stub->Decode(&context, request, &response).error_code(),
                grpc::StatusCode::DEADLINE_EXCEEDED);
    });
  }
  for (std::size_t i = 2; i < callers.size(); ++i) callers[i].join();
  EXPECT_TRUE(Await([&local] { return local.server->live_calls() == 2; }));
  EXPECT_EQ(local.server->GetSnapshot().queue_requests, 0);
  local.backend.Release();
  callers[0].join();
  callers[1].join();
  EXPECT_TRUE(local.AwaitIdle());
  EXPECT_EQ(local.backend.batches(), 2);
  for (const std::string& id : ids) EXPECT_EQ(CachedTokens(local, id), 0);
  // A client that gives up first ends its call on the server too, as a cancelled one.
  EXPECT_EQ(Answers(local, "Decode", "DEADLINE_EXCEEDED") + Answers(local, "Decode", "CANCELLED"),
            20);
  EXPECT_EQ(Answers(local, "Decode", "OK"), 0);
  EXPECT_EQ(local.server->GetSnapshot().pages_used, 0) << "pages set aside were given back";
  EXPECT_TRUE(Attend(local).ok());
  EXPECT_EQ(local.backend.batches(), 3);
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

// A stream of raw bytes.
class RawStream {
 public:
  explicit RawStream(const LocalServer& local)
      : stub_(local.channel),
        call_(stub_.PrepareCall(&context_, "/attnd.v1.AttentionService/DecodeStream", &queue_)) {
    call_->StartCall(&started_);
    EXPECT_TRUE(Await(&started_));
  }
  ~RawStream() {
    context_.TryCancel();
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }
  RawStream(const RawStream&) = delete;
  RawStream& operator=(const RawStream&) = delete;

  // False: the stream has ended, or nothing more is taken; then it is blocked for ever.
  bool Write(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    call_->Write(grpc::ByteBuffer(&slice, 1), &written_);
    void* tag = nullptr;
    bool ok = false;
    const auto limit = std::chrono::system_clock::now() + milliseconds(200);
    blocked_ = queue_.AsyncNext(&tag, &ok, limit) != grpc::CompletionQueue::GOT_EVENT;
    return !blocked_ && ok;
  }
  bool blocked() const { return blocked_; }
  bool Read() {
    grpc::ByteBuffer reply;
    call_->Read(&reply, &read_);
    return Await(&read_);
  }
  // Once every reply has been read.
  grpc::Status Finish() {
    grpc::Status status;
    call_->Finish(&status, &finished_);
    Await(&finished_);
    return status;
  }

 private:
  // Passes over a Write that was blocked.
  bool Await(const char* awaited) {
    void* tag = nullptr;
    bool ok = false;
    const auto limit = std::chrono::system_clock::now() + seconds(10);
    while (tag != awaited) {
      if (queue_.AsyncNext(&tag, &ok, limit) == grpc::CompletionQueue::GOT_EVENT) continue;
      ADD_FAILURE() << "the stream hangs";
      return false;
    }
    return ok;
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  bool blocked_ = false;
  char started_ = 0, written_ = 0, read_ = 0, finished_ = 0;  // tags
};

const std::string& Chunk() {
  static const std::string chunk(kMiB, 'x');
  return chunk;
}

TEST(LifecycleCasesTest, AnUnparsableMessageStopsTheReadingOfAStreamAtOnce) {
  LocalServer local;
  const std::string id = local.CreateSequence();
  local.backend.Hold();
  RawStream stream(local);
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

TEST(LifecycleCasesTest, ClientsThatSendOnAfterAnUnparsableMessageCostNoMemory) {
  LocalServer local;
  std::int64_t before = 0;
  constexpr int kWarmUp = 10;
  for (int round = 0; round < kWarmUp + 50; ++round) {
    if (round == kWarmUp) before = ResidentBytes();
    RawStream stream(local);
    ASSERT_TRUE(stream.Write("\x0A\xFF"));
    int chunks = 0;
    while (chunks < 1024 && stream.Write(Chunk())) ++chunks;
    ASSERT_LT(chunks, 64) << "the client hears of it late";
    ASSERT_EQ(stream.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_TRUE(local.AwaitIdle());
  if (kMemoryIsTrue) {
    // The client's buffers are in this process too, and allocators keep some of what they got: one
    // chunk of 1 MiB kept a round would be 50 MiB.
    EXPECT_LE(ResidentBytes() - before, 32 * kMiB);
  }
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
  RawStream stream(local);
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
