#include "client/poller.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "grpcpp/alarm.h"

namespace attnd::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::system_clock;

// Remembers how and on which thread its operations ended.
class Recorder final : public Poller::Waiter {
 public:
  void OnCompleted(bool ok) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    results_.push_back(ok);
    threads_.push_back(std::this_thread::get_id());
    changed_.notify_all();
  }
  void Await(std::size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return results_.size() >= count; });
  }
  std::vector<bool> results() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return results_;
  }
  std::vector<std::thread::id> threads() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return threads_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> results_;
  std::vector<std::thread::id> threads_;
};

TEST(PollerTest, EachOperationCallsItsWaiterOnceOnTheSameOtherThread) {
  Recorder recorder;
  Poller poller;
  grpc::Alarm now;
  grpc::Alarm never;
  now.Set(poller.queue(), system_clock::now(), Poller::TagOf(recorder));
  recorder.Await(1);
  never.Set(poller.queue(), system_clock::now() + std::chrono::hours(1), Poller::TagOf(recorder));
  never.Cancel();
  recorder.Await(2);
  EXPECT_EQ(recorder.results(), (std::vector<bool>{true, false}));
  EXPECT_EQ(recorder.threads()[0], recorder.threads()[1]);
  EXPECT_NE(recorder.threads()[0], std::this_thread::get_id());
}

TEST(PollerTest, ADestroyedPollerHasWaitedForItsOperations) {
  Recorder recorder;
  grpc::Alarm alarm;
  {
    Poller poller;
    alarm.Set(poller.queue(), system_clock::now() + milliseconds(50), Poller::TagOf(recorder));
  }
  EXPECT_EQ(recorder.results(), std::vector<bool>{true});
}

}  // namespace
}  // namespace attnd::client
