// Calls and streams that are given up at the moment at which they complete, at full length and with
// times drawn around the latency under that very load. Worth most under the sanitizers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/exposition_parser.h"
#include "tests/support/local_server.h"

namespace attnd::testing {
namespace {

// How often each status code ended a call.
using Endings = std::map<grpc::StatusCode, std::int64_t>;

using std::chrono::steady_clock;
using ::testing::AnyOf;
using Duration = steady_clock::duration;

constexpr int kThreads = 16;

// One call on a thread of its own kind; `after` is when it is given up, zero: never.
using OneCall = std::function<grpc::StatusCode(int number, Duration after)>;

Duration MedianLatency(const OneCall& call) {
  constexpr int kCalls = 10;
  std::vector<Duration> latencies(kThreads * kCalls);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < kCalls; ++i) {
        const auto begin = steady_clock::now();
        EXPECT_EQ(call(i, Duration::zero()), grpc::StatusCode::OK);
        latencies[thread * kCalls + i] = steady_clock::now() - begin;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::sort(latencies.begin(), latencies.end());
  return latencies[latencies.size() / 2];
}

Endings Race(int calls, const OneCall& call) {
  const Duration median = MedianLatency(call);
  std::atomic<int> next{0};
  std::vector<Endings> endings(kThreads);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937 random(thread);
      std::uniform_real_distribution<double> factor(0.5, 1.5);
      for (int number = next++; number < calls; number = next++) {
        const auto after = std::chrono::duration_cast<Duration>(median * factor(random));
        ++endings[thread][call(number, after)];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Endings all;
  for (const Endings& each : endings) {
    for (const auto& [code, count] : each) all[code] += count;
  }
  return all;
}

// The end of one call, handed from gRPC's thread to the caller's under a mutex.
class CallEnd {
 public:
  // gRPC hands the callback over in ways that ThreadSanitizer does not see: a lock of each side
  // shows it that this object was made first.
  CallEnd() { const std::lock_guard<std::mutex> lock(mutex_); }

  void Set(grpc::Status status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    EXPECT_FALSE(status_.has_value()) << "a call ended twice";
    status_ = std::move(status);
    changed_.notify_one();
  }
  void WaitFor(Duration limit) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, limit, [this] { return status_.has_value(); });
  }
  grpc::StatusCode Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return status_.has_value(); });
    return status_->error_code();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<grpc::Status> status_;
};

// `start(context, callback)` starts the call.
template <typename Start>
grpc::StatusCode CallAndGiveUp(const Start& start, bool by_deadline, Duration after) {
  grpc::ClientContext context;
  const bool gives_up = after > Duration::zero();
  if (gives_up && by_deadline) {
    context.set_deadline(std::chrono::system_clock::now() + after);
  }
  CallEnd end;
  start(&context, [&end](grpc::Status status) { end.Set(std::move(status)); });
  if (gives_up && !by_deadline) {
    end.WaitFor(after);
    context.TryCancel();
  }
  return end.Wait();
}

// `calls` unary calls, Attend and Decode in turn, given up by deadline and by cancel in turn.
Endings RaceUnaryCalls(LocalServer& local, int calls) {
  // A step that repeats the first one is answered again, so that it does not matter which of them
  // were cancelled.
  const std::string id = local.CreateSequence();
  const auto decode = DecodeRequestOf(id, 0, 1);
  const auto attend = AttendRequestOf(16, 64, 1);
  return Race(calls, [&](int number, Duration after) {
    const bool by_deadline = number / 2 % 2 == 0;
    if (number % 2 == 0) {
      v1::AttendResponse response;
      return CallAndGiveUp(
          [&](grpc::ClientContext* context, auto callback) {
            local.stub->async()->Attend(context, &attend, &response, std::move(callback));
          },
          by_deadline, after);
    }
    v1::DecodeResponse response;
    return CallAndGiveUp(
        [&](grpc::ClientContext* context, auto callback) {
          local.stub->async()->Decode(context, &decode, &response, std::move(callback));
        },
        by_deadline, after);
  });
}

// Streams of three steps each, given up likewise.
Endings RaceStreams(LocalServer& local, int streams) {
  const std::string id = local.CreateSequence();
  return Race(streams, [&](int number, Duration after) {
    grpc::ClientContext context;
    const bool gives_up = after > Duration::zero();
    const bool by_deadline = gives_up && number % 2 == 0;
    if (by_deadline) context.set_deadline(std::chrono::system_clock::now() + after);
    const auto stream = local.stub->DecodeStream(&context);
    std::promise<void> ended;
    std::thread canceller;
    if (gives_up && !by_deadline) {
      canceller = std::thread([&context, after, end = ended.get_future()] {
        end.wait_for(after);
        context.TryCancel();
      });
    }
    for (int step = 0; step < 3; ++step) stream->Write(DecodeRequestOf(id, 0, 1));
    stream->WritesDone();
    v1::DecodeResponse response;
    while (stream->Read(&response)) {
      EXPECT_THAT(response.status().code(),
                  AnyOf(grpc::StatusCode::OK, grpc::StatusCode::DEADLINE_EXCEEDED));
    }
    const auto code = stream->Finish().error_code();
    ended.set_value();
    if (canceller.joinable()) canceller.join();
    return code;
  });
}

// Every call ended, in one of three ways, all of which occurred; the server kept nothing of them.
void ExpectNothingLeft(LocalServer& local, const Endings& endings, std::int64_t calls) {
  std::int64_t ended = 0;
  for (const auto code :
       {grpc::StatusCode::OK, grpc::StatusCode::DEADLINE_EXCEEDED, grpc::StatusCode::CANCELLED}) {
    const auto found = endings.find(code);
    const std::int64_t count = found == endings.end() ? 0 : found->second;
    EXPECT_GT(count, 0) << "no call ended with code " << code << ": no race";
    ended += count;
  }
  EXPECT_EQ(ended, calls) << "some ended in another way";
  EXPECT_TRUE(local.AwaitIdle());
  const auto page = ParseExposition(local.server->MetricsText());
  for (const char* gauge : {"attnd_queue_depth", "attnd_queue_bytes", "attnd_running_requests",
                            "attnd_running_batches", "attnd_open_streams"}) {
    EXPECT_EQ(page.Value(gauge), 0) << gauge;
  }
  EXPECT_EQ(page.Value("attnd_sequences", {{"state", "active"}}), 0);
  grpc::ClientContext context;
  v1::AttendResponse response;
  EXPECT_TRUE(local.stub->Attend(&context, AttendRequestOf(1, 1, 1), &response).ok());
}

TEST(CancelRaceTest, TwentyThousandCallsEndOnceAndLeaveNothing) {
  LocalServer local;
  constexpr int kCalls = 20'000;
  ExpectNothingLeft(local, RaceUnaryCalls(local, kCalls), kCalls);
}

TEST(CancelRaceTest, FiveThousandStreamsEndOnceAndLeaveNothing) {
  LocalServer local;
  constexpr int kStreams = 5'000;
  ExpectNothingLeft(local, RaceStreams(local, kStreams), kStreams);
}

}  // namespace
}  // namespace attnd::testing
