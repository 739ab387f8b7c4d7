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

  explicit ArrivalPlaces(std::int64_t limit) : limit_(limit) {}

  // False: `waiting` requests of the queue and those that arrive fill it.
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
