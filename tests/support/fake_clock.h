// A clock that only a test moves. Starts well above zero, so that time points before it exist.
#pragma once

#include <atomic>

#include "server/clock.h"

namespace attnd {

class FakeClock final : public Clock {
 public:
  TimePoint Now() const override { return TimePoint(Duration(now_ns_.load())); }
  bool RunsByItself() const override { return false; }
  void Advance(Duration duration) { now_ns_ += duration.count(); }

 private:
  std::atomic<std::int64_t> now_ns_{std::chrono::nanoseconds(std::chrono::hours(1)).count()};
};

}  // namespace attnd
