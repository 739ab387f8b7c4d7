// attnd, all of it, with a device that a test stops from outside: a program of its own, so that the
// product has no switch for it.
//
// SIGUSR1: batches that come from now on stay on the device and complete no more, and whoever waits
// for the device waits for ever, as for a GPU that hangs. SIGUSR2: the driver gives up the oldest
// of them as failed; the others stay.
#include <atomic>
#include <chrono>
#include <csignal>
#include <deque>
#include <memory>
#include <thread>
#include <utility>

#include "server/attention_backend.h"
#include "server/attnd_process.h"
#include "server/mutex.h"

namespace attnd::testing {
namespace {

constexpr std::chrono::milliseconds kDriverPoll{5};

std::atomic<bool> g_stopped{false};
std::atomic<int> g_given_up{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "handlers of signals write them");

class StoppableDevice final : public AttentionBackend {
 public:
  explicit StoppableDevice(std::unique_ptr<AttentionBackend> inner) : inner_(std::move(inner)) {
    // Never joined: a process whose device hangs does not end in order.
    std::thread([this] { RunDriver(); }).detach();
  }

  const BackendLimits& limits() const override { return inner_->limits(); }
  void Submit(std::unique_ptr<Batch> batch, BatchDone done) override {
    if (!g_stopped) return inner_->Submit(std::move(batch), std::move(done));
    MutexLock lock(mutex_);
    held_.push_back({std::move(batch), std::move(done)});
  }
  absl::Status SelfTest() override { return inner_->SelfTest(); }
  void Stop() override {
    {
      MutexLock lock(mutex_);
      while (!held_.empty()) completed_.wait(mutex_);
    }
    inner_->Stop();
  }

 private:
  struct Held {
    std::unique_ptr<Batch> batch;
    BatchDone done;
  };

  [[noreturn]] void RunDriver() {
    for (int answered = 0;;) {
      std::this_thread::sleep_for(kDriverPoll);
      if (answered == g_given_up || !FailOldest()) continue;
      ++answered;
    }
  }

  bool FailOldest() {
    Held oldest;
    {
      MutexLock lock(mutex_);
      if (held_.empty()) return false;
      oldest = std::move(held_.front());
      held_.pop_front();
      completed_.notify_all();
    }
    BatchResult result;
    result.status = absl::InternalError("the launch timed out and was terminated");
    oldest.done(std::move(oldest.batch), std::move(result));
    return true;
  }

  const std::unique_ptr<AttentionBackend> inner_;
  Mutex mutex_;
  ConditionVariable completed_;
  std::deque<Held> held_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace
}  // namespace attnd::testing

int main(int argc, char** argv) {
  std::signal(SIGUSR1, [](int) { attnd::testing::g_stopped = true; });
  std::signal(SIGUSR2, [](int) { ++attnd::testing::g_given_up; });
  attnd::ServerHooks hooks;
  hooks.wrap_backend = [](std::unique_ptr<attnd::AttentionBackend> inner) {
    return std::make_unique<attnd::testing::StoppableDevice>(std::move(inner));
  };
  return attnd::RunAttnd(argc, argv, std::move(hooks));
}
