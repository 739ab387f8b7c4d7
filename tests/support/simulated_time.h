// Discrete-event time: waiting runs the events that fall due, in order, and moves time to them. A
// run of simulated minutes takes milliseconds and is the same every time.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "client/time_source.h"

namespace attnd::client {

// One thread only.
class SimulatedTime final : public TimeSource {
 public:
  TimePoint Now() const override { return now_; }

  void WaitUntil(std::unique_lock<std::mutex>& lock, std::condition_variable&,
                 TimePoint until) override {
    if (events_.empty() || events_.begin()->first > until) {
      now_ = std::max(now_, until);
      return;
    }
    const auto event = events_.begin();
    now_ = std::max(now_, event->first);
    const std::function<void()> run = std::move(event->second);
    events_.erase(event);
    lock.unlock();
    run();
    lock.lock();
  }

  void At(TimePoint time, std::function<void()> run) { events_.emplace(time, std::move(run)); }

 private:
  TimePoint now_ = TimePoint(std::chrono::hours(1));
  std::multimap<TimePoint, std::function<void()>> events_;
};

}  // namespace attnd::client
