#include "server/quiet_time.h"

namespace attnd {

bool QuietTime::Begins(Clock::TimePoint now, Clock::Duration process_time) {
  const Clock::Duration used = process_time - window_time_;
  const bool busy = used > kWindow / kShare;
  if (!busy && now - window_begin_ < kWindow) return false;
  window_begin_ = now;
  window_time_ = process_time;
  if (busy) work_ += used;
  if (busy || work_ < kLeastWork) return false;
  work_ = Clock::Duration{0};
  return true;
}

}  // namespace attnd
