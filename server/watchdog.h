// Turns what the server knows about itself into readiness: the only writer of HealthState.
//
// Serving means: the self-test has passed, the server does not stop, the device has not faulted,
// and it makes progress. A device makes none when work is in flight and nothing has completed for
// the stall limit; an idle device is not stuck. A stall ends with the next completion, a fault
// never.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "server/clock.h"
#include "server/health_state.h"

namespace attnd {

struct ReadinessInputs {
  bool self_test_passed = false;
  // The server ends all work (SIGTERM). A retiring server still serves the sequences it holds, so
  // it does not set this: its refusals of new ones carry the reason.
  bool stopping = false;
  bool device_fault = false;
  bool work_in_flight = false;         // handed to the device and not completed
  Clock::TimePoint last_completion{};  // any value that changes with every completion
};

// What has to be remembered between two decisions.
struct ReadinessMemory {
  bool faulted = false;
  // Latest time at which the device was seen idle or known to have completed something.
  Clock::TimePoint last_progress{};
};

// Pure. Updates `memory`, whose last_progress starts as the time of the first call.
HealthState::Report DecideReadiness(const ReadinessInputs& inputs, Clock::TimePoint now,
                                    Clock::Duration stall_limit, ReadinessMemory& memory);

// Decides at a steady pace on a thread of its own, and at once when told of a change.
// Thread-safe.
class Watchdog {
 public:
  using ReadInputs = std::function<ReadinessInputs()>;

  // `read_inputs` is called on any thread that decides, one call at a time; references outlive the
  // watchdog. Nothing is decided before the first Evaluate or Start.
  Watchdog(const Clock& clock, Clock::Duration stall_limit, ReadInputs read_inputs,
           HealthState& health);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Starts the thread; a stall is seen at most `poll_interval` after its limit.
  void Start(std::chrono::milliseconds poll_interval = std::chrono::milliseconds(100));
  // Ends the thread; the health state stays as it is. Idempotent.
  void Stop();
  // Decides now, on this thread, for whoever changes an input that must show at once.
  void Evaluate();

 private:
  void Run(std::chrono::milliseconds poll_interval);

  const Clock& clock_;
  const Clock::Duration stall_limit_;
  const ReadInputs read_inputs_;
  HealthState& health_;

  std::mutex evaluate_mutex_;  // one decision at a time, so that an older one never overwrites
  ReadinessMemory memory_ ABSL_GUARDED_BY(evaluate_mutex_);

  std::mutex thread_mutex_;
  std::condition_variable stop_changed_;
  bool stop_requested_ ABSL_GUARDED_BY(thread_mutex_) = false;
  std::thread thread_;
};

}  // namespace attnd
