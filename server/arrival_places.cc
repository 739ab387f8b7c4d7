#include "server/arrival_places.h"

namespace attnd {

bool ArrivalPlaces::Enter(ArrivalPlace& place, std::int64_t waiting, Clock::TimePoint now) {
  const MutexLock lock(mutex_);
  if (waiting >= limit_) return false;
  const auto room = static_cast<std::size_t>(limit_ + kBeyondLimit - waiting);
  if (held_.size() >= room) LendTheSlow(now);
  if (held_.size() >= room) return false;
  place.held_ = true;
  place.entered_ = now;
  place.position_ = held_.insert(held_.end(), &place);
  return true;
}

void ArrivalPlaces::Leave(ArrivalPlace& place) {
  const MutexLock lock(mutex_);
  if (!place.held_) return;
  place.held_ = false;
  held_.erase(place.position_);
}

std::int64_t ArrivalPlaces::held() const {
  const MutexLock lock(mutex_);
  return static_cast<std::int64_t>(held_.size());
}

void ArrivalPlaces::LendTheSlow(Clock::TimePoint now) {
  while (!held_.empty() && now - held_.front()->entered_ > kPatience) {
    held_.front()->held_ = false;
    held_.pop_front();
  }
}

}  // namespace attnd
