// Time for client tests. Automatic: a wait with an end returns at once, having moved time to that
// end, so that sleeping code runs without sleeping. Manual: waits last until Advance has moved time
// past their end.
#pragma once

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "client/time_source.h"

namespace attnd::client {

class ManualTime final : public TimeSource {
 public:
  enum class Mode { kAutomatic, kManual };
  explicit ManualTime(Mode mode) : mode_(mode) {}

  TimePoint Now() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return now_;
  }

  void WaitUntil(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                 TimePoint until) override {
    {
      const std::lock_guard<std::mutex> own(mutex_);
      if (now_ >= until) return;
      if (mode_ == Mode::kAutomatic && until != kNever) {
        waits_.push_back(until - now_);
        now_ = until;
        return;
      }
      waiters_[&changed] = {lock.mutex(), until};
      waiters_changed_.notify_all();
    }
    changed.wait(lock);
    const std::lock_guard<std::mutex> own(mutex_);
    waiters_.erase(&changed);
  }

  void Advance(Duration duration) {
    std::map<std::condition_variable*, Waiter> waiters;
    {
      const std::lock_guard<std::mutex> own(mutex_);
      now_ += duration;
      waiters = waiters_;
    }
    for (const auto& [changed, waiter] : waiters) {
      // A waiter registers with its mutex held: taking it here means that it waits by now.
      const std::lock_guard<std::mutex> wait(*waiter.mutex);
      changed->notify_all();
    }
  }

  // Blocks until a thread waits for exactly this time.
  void AwaitWaiter(TimePoint until) {
    std::unique_lock<std::mutex> own(mutex_);
    waiters_changed_.wait(own, [&] {
      return std::any_of(waiters_.begin(), waiters_.end(),
                         [&](const auto& item) { return item.second.until == until; });
    });
  }

  // Automatic mode: every wait that time was moved for.
  std::vector<Duration> waits() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return waits_;
  }

 private:
  struct Waiter {
    std::mutex* mutex = nullptr;
    TimePoint until{};
  };
  const Mode mode_;
  mutable std::mutex mutex_;
  std::condition_variable waiters_changed_;
  TimePoint now_ = TimePoint(std::chrono::hours(1));
  std::map<std::condition_variable*, Waiter> waiters_;
  std::vector<Duration> waits_;
};

}  // namespace attnd::client
