// When a process that has been busy has become quiet: time to give memory back, which costs some
// milliseconds and page faults when work comes again. Pure: told the time and the processor time
// that the process has used. Not thread-safe.
#pragma once

#include "server/clock.h"

namespace attnd {

class QuietTime {
 public:
  // Quiet: less than a fiftieth of one core for kWindow.
  static constexpr Clock::Duration kWindow = std::chrono::seconds(2);
  static constexpr int kShare = 50;
  // Less work than that since the last quiet time leaves nothing behind.
  static constexpr Clock::Duration kLeastWork = std::chrono::milliseconds(200);

  QuietTime(Clock::TimePoint now, Clock::Duration process_time)
      : window_begin_(now), window_time_(process_time) {}

  // True once after each busy time. Called every now and then, some times a window.
  bool Begins(Clock::TimePoint now, Clock::Duration process_time);
  // What has been used up to here counts as no work.
  void Skip(Clock::Duration process_time) { window_time_ = process_time; }

 private:
  Clock::TimePoint window_begin_;
  Clock::Duration window_time_;  // used at window_begin_
  Clock::Duration work_{0};      // used in busy windows since the last quiet time
};

}  // namespace attnd
