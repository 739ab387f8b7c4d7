// Whether this server serves, and why not: one value that health checks, readiness probes and
// metrics read and that the watchdog sets.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"

namespace attnd {

// Thread-safe.
class HealthState {
 public:
  enum class State { kNotServing, kServing };
  struct Report {
    State state = State::kNotServing;
    std::string reason;  // why not; empty while serving
  };
  using Callback = std::function<void(State)>;

  // Starts as not serving, "starting".
  HealthState() = default;
  HealthState(const HealthState&) = delete;
  HealthState& operator=(const HealthState&) = delete;

  // Calls every subscriber, on this thread, when the state differs from before; a changed reason
  // alone calls nobody. Returns after the calls. Concurrent Sets take effect one after the other,
  // so that all subscribers see the same order.
  void Set(State state, std::string_view reason = {});
  State Get() const;
  Report GetReport() const;

  // Calls `callback` with the current state before it returns and then at every change, never two
  // calls at once. A callback must not call Set, Subscribe or Unsubscribe.
  int Subscribe(Callback callback);
  // Once this returns the callback is neither running nor called again; it is destroyed. Unknown
  // ids are ignored.
  void Unsubscribe(int id);

 private:
  // Held during callbacks; taken before mutex_. Get and GetReport never wait for a callback.
  std::mutex callback_mutex_;
  std::map<int, Callback> subscribers_ ABSL_GUARDED_BY(callback_mutex_);
  int next_id_ ABSL_GUARDED_BY(callback_mutex_) = 1;

  mutable std::mutex mutex_;
  Report report_ ABSL_GUARDED_BY(mutex_) = {State::kNotServing, "starting"};
};

}  // namespace attnd
