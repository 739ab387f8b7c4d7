// Steady time and waiting for the client library, injectable: tests neither sleep nor race.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

namespace attnd::client {

class TimeSource {
 public:
  using Duration = std::chrono::nanoseconds;
  using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;
  static constexpr TimePoint kNever = TimePoint::max();

  TimeSource() = default;
  TimeSource(const TimeSource&) = delete;
  TimeSource& operator=(const TimeSource&) = delete;
  virtual ~TimeSource() = default;

  virtual TimePoint Now() const = 0;

  // Waits until `changed` is notified or `until` has come; may return earlier, so callers loop.
  // `lock` is held on entry and on return.
  virtual void WaitUntil(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                         TimePoint until) = 0;
};

using Duration = TimeSource::Duration;
using TimePoint = TimeSource::TimePoint;

// The machine's steady clock. Thread-safe, shared by the whole process.
std::shared_ptr<TimeSource> SystemTime();

}  // namespace attnd::client
