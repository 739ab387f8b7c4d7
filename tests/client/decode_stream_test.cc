// The stream wrapper against a scripted server that breaks streams.
#include "client/decode_stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "client/attention_client.h"
#include "tests/support/fake_attention_server.h"

namespace attnd::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class DecodeStreamTest : public ::testing::Test {
 protected:
  ClientOptions Options() {
    ClientOptions options;
    options.transport.target = server_.target();
    options.retry.initial_backoff = milliseconds(1);
    options.retry.max_backoff = milliseconds(20);
    options.random_seed = 1;
    return options;
  }
  // A request whose one value tells it from the others.
  static DecodeRequest Request(int number) {
    DecodeRequest request;
    v1::Step step;
    step.set_sequence_id("sequence");
    step.set_position(number);
    step.set_num_tokens(1);
    request.steps.push_back(step);
    request.q = *TensorFromFloats(v1::DATA_TYPE_FP32, {1, 1, 1},
                                  std::vector<float>{static_cast<float>(number)});
    return request;
  }
  static float ValueOf(const absl::StatusOr<DecodeResult>& result) {
    return result.ok() ? FloatsFromTensor(result->o)->at(0) : -1;
  }

  FakeAttentionServer server_;
};

TEST_F(DecodeStreamTest, ManyRequestsShareOneStreamAndGetTheirOwnAnswers) {
  AttentionClient client(Options());
  const auto stream = client.OpenDecodeStream();
  std::vector<std::future<absl::StatusOr<DecodeResult>>> futures;
  for (int i = 0; i < 200; ++i) futures.push_back(stream->Submit(Request(i)));
  for (int i = 0; i < 200; ++i) EXPECT_EQ(ValueOf(futures[static_cast<std::size_t>(i)].get()), i);
  EXPECT_EQ(server_.streams(), 1);
  EXPECT_EQ(stream->in_flight(), 0);
}

TEST_F(DecodeStreamTest, ABrokenStreamIsReopenedAndUnansweredRequestsAreSentAgain) {
  server_.BreakStreams({{5, grpc::Status(grpc::StatusCode::UNAVAILABLE, "lost")},
                        {3, grpc::Status::OK},
                        {0, grpc::Status(grpc::StatusCode::CANCELLED, "reset")},
                        {2, grpc::Status(grpc::StatusCode::INTERNAL, "RST_STREAM")}});
  AttentionClient client(Options());
  const auto stream = client.OpenDecodeStream();
  std::vector<std::future<absl::StatusOr<DecodeResult>>> futures;
  for (int i = 0; i < 40; ++i) futures.push_back(stream->Submit(Request(i)));
  for (int i = 0; i < 40; ++i) EXPECT_EQ(ValueOf(futures[static_cast<std::size_t>(i)].get()), i);
  EXPECT_EQ(server_.streams(), 5);
  EXPECT_EQ(stream->reopened(), 4);
  // Every repetition is the same request: position tells the server what it has seen.
  std::set<std::int64_t> positions;
  for (const auto& request : server_.stream_requests())
    positions.insert(request.steps(0).position());
  EXPECT_EQ(positions.size(), 40U);
}

TEST_F(DecodeStreamTest, AFinalStreamStatusAnswersEverythingWithIt) {
  server_.BreakStreams({{0, grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "no token")}});
  AttentionClient client(Options());
  const auto stream = client.OpenDecodeStream();
  auto first = stream->Submit(Request(1));
  auto second = stream->Submit(Request(2));
  EXPECT_EQ(first.get().status().code(), absl::StatusCode::kUnauthenticated);
  // Sent before or after the end: on the first stream or on the next one.
  const absl::StatusCode code = second.get().status().code();
  EXPECT_TRUE(code == absl::StatusCode::kUnauthenticated || code == absl::StatusCode::kOk);
  EXPECT_EQ(ValueOf(stream->Submit(Request(3)).get()), 3) << "the next request opens a new stream";
}

TEST_F(DecodeStreamTest, AStreamThatAlwaysBreaksEndsWithTheBudget) {
  std::vector<std::pair<int, grpc::Status>> breaks(
      100, {0, grpc::Status(grpc::StatusCode::UNAVAILABLE, "lost")});
  server_.BreakStreams(breaks);
  ClientOptions options = Options();
  options.retry.max_attempts = 4;
  AttentionClient client(options);
  const auto stream = client.OpenDecodeStream();
  EXPECT_EQ(stream->Submit(Request(1)).get().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server_.streams(), 4);
}

TEST_F(DecodeStreamTest, RefusedRequestsWaitForTheirDelayWhileOthersGoOn) {
  server_.Script({{.code = grpc::StatusCode::RESOURCE_EXHAUSTED,
                   .detail = DetailWithDelay(v1::REASON_QUEUE_FULL, milliseconds(50))}});
  AttentionClient client(Options());
  const auto stream = client.OpenDecodeStream();
  auto refused = stream->Submit(Request(1));
  auto other = stream->Submit(Request(2));
  EXPECT_EQ(ValueOf(other.get()), 2);
  EXPECT_EQ(ValueOf(refused.get()), 1);
  EXPECT_EQ(server_.streams(), 1);
  EXPECT_EQ(server_.stream_requests().size(), 3U);
}

TEST_F(DecodeStreamTest, RequestErrorsDoNotDisturbTheStream) {
  server_.Script({{.code = grpc::StatusCode::INVALID_ARGUMENT,
                   .detail = DetailWithDelay(v1::REASON_INVALID_FIELD)}});
  AttentionClient client(Options());
  const auto stream = client.OpenDecodeStream();
  const auto refused = stream->Submit(Request(1)).get();
  EXPECT_EQ(DescribeError(refused.status()).reason, v1::REASON_INVALID_FIELD);
  EXPECT_EQ(ValueOf(stream->Submit(Request(2)).get()), 2);
  EXPECT_EQ(server_.streams(), 1);
}

TEST_F(DecodeStreamTest, UnansweredRequestsEndAtTheirDeadline) {
  server_.CloseGate();
  AttentionClient client(Options());
  const auto stream = client.OpenDecodeStream();
  auto late = stream->Submit(Request(1), milliseconds(100));
  EXPECT_EQ(late.get().status().code(), absl::StatusCode::kDeadlineExceeded);
  server_.OpenGate();
  EXPECT_EQ(ValueOf(stream->Submit(Request(2)).get()), 2) << "the late reply is ignored";
  EXPECT_GT(server_.stream_requests()[0].execution().timeout().nanos(), 0);
}

TEST_F(DecodeStreamTest, ClosingAnswersWhatIsInFlight) {
  server_.CloseGate();
  AttentionClient client(Options());
  auto stream = client.OpenDecodeStream();
  auto pending = stream->Submit(Request(1));
  server_.AwaitCalls(1);
  server_.OpenGate();
  stream.reset();
  const absl::StatusCode code = pending.get().status().code();
  EXPECT_TRUE(code == absl::StatusCode::kCancelled || code == absl::StatusCode::kOk);
}

TEST_F(DecodeStreamTest, CallbacksMaySubmit) {
  AttentionClient client(Options());
  const auto stream = client.OpenDecodeStream();
  std::promise<int> done;
  std::atomic<int> steps{0};
  std::function<void()> next = [&] {
    stream->Submit(Request(steps), [&](absl::StatusOr<DecodeResult> result) {
      ASSERT_TRUE(result.ok());
      if (++steps == 100) {
        done.set_value(steps);
      } else {
        next();
      }
    });
  };
  next();
  EXPECT_EQ(done.get_future().get(), 100);
}

TEST_F(DecodeStreamTest, ARestartedServerIsFoundByTheSameStream) {
  ClientOptions options = Options();
  options.retry.max_backoff = milliseconds(200);
  AttentionClient client(options);
  const auto stream = client.OpenDecodeStream();
  EXPECT_EQ(ValueOf(stream->Submit(Request(1)).get()), 1);
  const int port = server_.port();
  server_.Stop();
  auto pending = stream->Submit(Request(2), seconds(10));
  server_.Start(port);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(ValueOf(pending.get()), 2);
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(5));
}

TEST_F(DecodeStreamTest, RequestsThatCannotBeEncodedFailAlone) {
  AttentionClient client(Options());
  const auto stream = client.OpenDecodeStream();
  DecodeRequest broken = Request(1);
  broken.q.data = nullptr;
  EXPECT_EQ(stream->Submit(std::move(broken)).get().status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ValueOf(stream->Submit(Request(2)).get()), 2);
}

TEST_F(DecodeStreamTest, AnswersOfAStreamComeOneAfterTheOtherOnOneThread) {
  AttentionClient client(Options());
  const auto stream = client.OpenDecodeStream();
  std::mutex mutex;
  std::condition_variable changed;
  std::set<std::thread::id> threads;
  int answered = 0;
  for (int i = 0; i < 200; ++i) {
    stream->Submit(Request(i), [&](const absl::StatusOr<DecodeResult>& result) {
      const std::lock_guard<std::mutex> lock(mutex);
      EXPECT_TRUE(result.ok()) << result.status();
      threads.insert(std::this_thread::get_id());
      ++answered;
      changed.notify_one();
    });
  }
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return answered == 200; });
  EXPECT_EQ(threads.size(), 1U);
}

// Real time that counts how often a thread begins to wait.
class CountingTime final : public TimeSource {
 public:
  TimePoint Now() const override { return SystemTime()->Now(); }
  void WaitUntil(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                 TimePoint until) override {
    ++waits;
    SystemTime()->WaitUntil(lock, changed, until);
  }

  std::atomic<int> waits{0};
};

TEST_F(DecodeStreamTest, AnswersDoNotWakeTheTimerThread) {
  const auto time = std::make_shared<CountingTime>();
  ClientOptions options = Options();
  options.time = time;
  AttentionClient client(options);
  const auto stream = client.OpenDecodeStream();
  for (int i = 0; i < 200; ++i) EXPECT_EQ(ValueOf(stream->Submit(Request(i)).get()), i);
  // Until the first deadline is known and after it; a system may wake a thread for nothing.
  EXPECT_LT(time->waits, 20);
}

TEST_F(DecodeStreamTest, AStreamThatEndsWhileAMessageIsBeingWrittenAnswersIt) {
  server_.BreakStreams({{-1, grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "no token")}});
  AttentionClient client(Options());
  const auto stream = client.OpenDecodeStream();
  DecodeRequest large = Request(1);
  // More than sockets and flow control take for a peer that does not read.
  large.q.size_bytes = std::int64_t{32} << 20;
  large.q.shape = {large.q.size_bytes / 4, 1, 1};
  large.q.data = AllocateBytes(large.q.size_bytes);
  EXPECT_EQ(stream->Submit(std::move(large)).get().status().code(),
            absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(ValueOf(stream->Submit(Request(2)).get()), 2);
}

}  // namespace
}  // namespace attnd::client
