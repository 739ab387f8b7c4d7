#include "server/watchdog.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace attnd {

HealthState::Report DecideReadiness(const ReadinessInputs& inputs, Clock::TimePoint now,
                                    Clock::Duration stall_limit, ReadinessMemory& memory) {
  using State = HealthState::State;
  memory.faulted = memory.faulted || inputs.device_fault;
  // After an idle spell the last completion is old: the stall is counted from when work appeared.
  memory.last_progress = inputs.work_in_flight && memory.last_progress != Clock::TimePoint{}
                             ? std::max(memory.last_progress, std::min(inputs.last_completion, now))
                             : now;
  if (memory.faulted) return {State::kNotServing, "device fault"};
  if (inputs.stopping) return {State::kNotServing, "stopping"};
  if (!inputs.self_test_passed) return {State::kNotServing, "self-test has not passed"};
  const Clock::Duration stalled = now - memory.last_progress;
  if (stalled >= stall_limit) {
    return {State::kNotServing,
            absl::StrCat("device stalled: work in flight and no completion for ",
                         std::chrono::duration_cast<std::chrono::seconds>(stalled).count(), " s")};
  }
  return {State::kServing, ""};
}

Watchdog::Watchdog(const Clock& clock, Clock::Duration stall_limit, ReadInputs read_inputs,
                   HealthState& health)
    : clock_(clock),
      stall_limit_(stall_limit),
      read_inputs_(std::move(read_inputs)),
      health_(health) {}

Watchdog::~Watchdog() { Stop(); }

void Watchdog::Start(std::chrono::milliseconds poll_interval) {
  thread_ = std::thread([this, poll_interval] { Run(poll_interval); });
}

void Watchdog::Stop() {
  {
    const std::lock_guard lock(thread_mutex_);
    stop_requested_ = true;
    stop_changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Watchdog::Evaluate() {
  const std::lock_guard lock(evaluate_mutex_);
  const HealthState::Report report =
      DecideReadiness(read_inputs_(), clock_.Now(), stall_limit_, memory_);
  health_.Set(report.state, report.reason);
}

void Watchdog::Run(std::chrono::milliseconds poll_interval) {
  std::unique_lock lock(thread_mutex_);
  while (!stop_requested_) {
    lock.unlock();
    Evaluate();
    lock.lock();
    stop_changed_.wait_for(lock, poll_interval, [this] { return stop_requested_; });
  }
}

}  // namespace attnd
