// Cancellation, expiry and completion at the same moment, on calls and streams: every call ends
// exactly once, nothing is left behind. Worth most under the sanitizers.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/local_server.h"

namespace attnd {
namespace {

using std::chrono::microseconds;
using std::chrono::steady_clock;
using testing::AttendRequestOf;
using testing::DecodeRequestOf;
using testing::LocalServer;

constexpr int kThreads = 16;

microseconds MedianLatency(LocalServer& local, const v1::AttendRequest& request) {
  std::array<microseconds, 51> times;
  for (auto& time : times) {
    grpc::ClientContext context;
    v1::AttendResponse response;
    const auto begin = steady_clock::now();
    EXPECT_TRUE(local.stub->Attend(&context, request, &response).ok());
    time = std::chrono::duration_cast<microseconds>(steady_clock::now() - begin);
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

// Runs body(thread, random) on all threads.
template <typename Body>
void OnThreads(Body&& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&body, i] {
      std::mt19937 random(i);
      body(i, random);
    });
  }
  for (auto& thread : threads) thread.join();
}

void ExpectNothingLeft(LocalServer& local) {
  ASSERT_TRUE(local.AwaitIdle());
  const auto snapshot = local.server->GetSnapshot();
  EXPECT_EQ(snapshot.queue_requests, 0);
  EXPECT_EQ(snapshot.queue_bytes, 0);
  EXPECT_EQ(snapshot.running_batches, 0);
  grpc::ClientContext context;
  v1::AttendResponse response;
  EXPECT_TRUE(local.stub->Attend(&context, AttendRequestOf(1, 1, 1), &response).ok());
}

TEST(CancellationRaceTest, DeadlinesNearTheLatencyEndEveryCallOnce) {
  LocalServer local;
  const auto request = AttendRequestOf(16, 64, 1);
  const auto median = MedianLatency(local, request).count();
  std::atomic<int> ok{0}, expired{0}, other{0};
  OnThreads([&](int, std::mt19937& random) {
    std::uniform_int_distribution<std::int64_t> around(median / 2, median * 3 / 2);
    for (int i = 0; i < 200; ++i) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + microseconds(around(random)));
      v1::AttendResponse response;
      const auto code = local.stub->Attend(&context, request, &response).error_code();
      ++(code == grpc::StatusCode::OK                  ? ok
         : code == grpc::StatusCode::DEADLINE_EXCEEDED ? expired
                                                       : other);
    }
  });
  EXPECT_EQ(ok + expired, kThreads * 200);
  EXPECT_EQ(other, 0);
  ExpectNothingLeft(local);
}

TEST(CancellationRaceTest, CancelsNearTheLatencyEndEveryCallOnce) {
  LocalServer local;
  const auto request = AttendRequestOf(16, 64, 1);
  const auto median = MedianLatency(local, request).count();
  std::atomic<int> ok{0}, cancelled{0}, other{0};
  OnThreads([&](int, std::mt19937& random) {
    std::uniform_int_distribution<std::int64_t> around(0, median * 3 / 2);
    for (int i = 0; i < 60; ++i) {
      grpc::ClientContext context;
      std::thread canceller([&context, delay = microseconds(around(random))] {
        std::this_thread::sleep_for(delay);
        context.TryCancel();
      });
      v1::AttendResponse response;
      const auto code = local.stub->Attend(&context, request, &response).error_code();
      ++(code == grpc::StatusCode::OK          ? ok
         : code == grpc::StatusCode::CANCELLED ? cancelled
                                               : other);
      canceller.join();
    }
  });
  EXPECT_EQ(ok + cancelled, kThreads * 60);
  EXPECT_EQ(other, 0);
  ExpectNothingLeft(local);
}

TEST(CancellationRaceTest, StreamsMayBeCancelledAtAnyMoment) {
  LocalServer local;
  std::vector<std::string> ids;
  for (int i = 0; i < kThreads; ++i) ids.push_back(local.CreateSequence());
  OnThreads([&](int thread, std::mt19937& random) {
    for (int i = 0; i < 30; ++i) {
      grpc::ClientContext context;
      auto stream = local.stub->DecodeStream(&context);
      const int writes = static_cast<int>(random() % 20);
      // Repeats, gaps and overlaps: admitted or refused step by step.
      for (int j = 0; j < writes; ++j) {
        if (!stream->Write(DecodeRequestOf(ids[thread], random() % 4, 1))) break;
      }
      v1::DecodeResponse response;
      const int reads = writes == 0 ? 0 : static_cast<int>(random() % writes);
      for (int j = 0; j < reads && stream->Read(&response); ++j) {
      }
      if (random() % 2 == 0) {
        context.TryCancel();
      } else {
        stream->WritesDone();
        while (stream->Read(&response)) {
        }
      }
      stream->Finish();
    }
  });
  ExpectNothingLeft(local);
}

// Without a lame duck period gRPC answers CANCELLED to calls that reach a port being closed.
bool Ended(grpc::StatusCode code) {
  return code == grpc::StatusCode::OK || code == grpc::StatusCode::UNAVAILABLE ||
         code == grpc::StatusCode::CANCELLED;
}

TEST(CancellationRaceTest, StopMayCoincideWithEverything) {
  for (int round = 0; round < 5; ++round) {
    LocalServer local;
    std::vector<std::string> ids;
    for (int i = 0; i < kThreads; ++i) ids.push_back(local.CreateSequence());
    std::thread stopper([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      local.server->Stop();
    });
    OnThreads([&](int thread, std::mt19937& random) {
      for (int i = 0; i < 40; ++i) {
        grpc::ClientContext context;
        context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
        if (random() % 2 == 0) {
          v1::AttendResponse response;
          const auto code =
              local.stub->Attend(&context, AttendRequestOf(1, 8, 1), &response).error_code();
          EXPECT_TRUE(Ended(code)) << code;
        } else {
          auto stream = local.stub->DecodeStream(&context);
          v1::DecodeResponse response;
          if (stream->Write(DecodeRequestOf(ids[thread], 0, 1))) stream->Read(&response);
          stream->WritesDone();
          const auto code = stream->Finish().error_code();
          EXPECT_TRUE(Ended(code)) << code;
        }
      }
    });
    stopper.join();
    EXPECT_EQ(local.server->live_calls(), 0);
  }
}

}  // namespace
}  // namespace attnd
