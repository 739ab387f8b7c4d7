// Injectable steady time. Deadlines, leases and policies read it; nothing in the server asks the
// system for time directly.
#pragma once

#include <chrono>

namespace attnd {

class Clock {
 public:
  using Duration = std::chrono::nanoseconds;
  using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
  // False for a clock that a test moves by hand: no thread may wait on it in real time. Whoever
  // moves it calls Scheduler::RunDueWork (and the like) itself.
  virtual bool RunsByItself() const { return true; }
  // Calendar time, for timestamps that are shown to others; it may jump. Never for durations.
  virtual std::chrono::system_clock::time_point WallNow() const {
    return std::chrono::system_clock::now();
  }

  static constexpr TimePoint kNever = TimePoint::max();
};

class SteadyClock final : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
};

}  // namespace attnd
