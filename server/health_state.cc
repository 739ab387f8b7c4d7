#include "server/health_state.h"

#include <utility>

namespace attnd {

void HealthState::Set(State state, std::string_view reason) {
  const std::lock_guard callback_lock(callback_mutex_);
  {
    const std::lock_guard lock(mutex_);
    const bool changed = report_.state != state;
    report_ = {state, state == State::kServing ? std::string() : std::string(reason)};
    if (!changed) return;
  }
  for (const auto& [id, callback] : subscribers_) callback(state);
}

HealthState::State HealthState::Get() const {
  const std::lock_guard lock(mutex_);
  return report_.state;
}

HealthState::Report HealthState::GetReport() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

int HealthState::Subscribe(Callback callback) {
  const std::lock_guard callback_lock(callback_mutex_);
  callback(Get());
  const int id = next_id_++;
  subscribers_.emplace(id, std::move(callback));
  return id;
}

void HealthState::Unsubscribe(int id) {
  const std::lock_guard callback_lock(callback_mutex_);
  subscribers_.erase(id);
}

}  // namespace attnd
