// Places of the queue that calls hold while their message is on its way: so a call that finds the
// queue full is refused before its message is received, and messages that nobody will run do not
// pile up in memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>

#include "absl/base/thread_annotations.h"
#include "server/clock.h"
#include "server/mutex.h"

namespace attnd {

// One call's place. Lives as long as the call; belongs to one ArrivalPlaces.
class ArrivalPlace {
 public:
  ArrivalPlace() = default;
  ArrivalPlace(const ArrivalPlace&) = delete;
  ArrivalPlace& operator=(const ArrivalPlace&) = delete;

 private:
  friend class ArrivalPlaces;
  // Members of the places' list, guarded by its mutex.
  bool held_ = false;
  Clock::TimePoint entered_{};
  std::list<ArrivalPlace*>::iterator position_;
};

// Thread-safe.
class ArrivalPlaces {
 public:
  // A message that takes longer than this to arrive lends its place to others, so that slow clients
  // cannot keep the queue from the rest. It finds the queue as it is when it has arrived.
  static constexpr Clock::Duration kPatience = std::chrono::seconds(1);
  // Messages that may be on their way beyond the limit, while the queue itself is not full: some go
  // to the device at once and never wait. Without them a queue of one place would refuse the second
  // of two calls that reach an idle server together. The queue refuses those that it cannot hold
  // when they have arrived.
  static constexpr std::int64_t kBeyondLimit = 4;

  explicit ArrivalPlaces(std::int64_t limit) : limit_(limit) {}

  // False: `waiting` requests fill the queue, or would with those that arrive.
  bool Enter(ArrivalPlace& place, std::int64_t waiting, Clock::TimePoint now);
  // Without a place: nothing happens.
  void Leave(ArrivalPlace& place);
  std::int64_t held() const;

 private:
  void LendTheSlow(Clock::TimePoint now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::int64_t limit_;
  mutable Mutex mutex_;
  std::list<ArrivalPlace*> held_ ABSL_GUARDED_BY(mutex_);  // oldest first
};

}  // namespace attnd
