#include "server/status_board.h"

#include <chrono>
#include <utility>

#include "server/server_flags.h"

namespace attnd {
namespace {

double UnixSeconds(const Clock& clock) {
  return std::chrono::duration<double>(clock.WallNow().time_since_epoch()).count();
}

}  // namespace

std::vector<StatusFacts::Flag> FlagsInEffect(const ServerConfig& config) {
  const ServerConfig defaults;
  std::vector<StatusFacts::Flag> flags;
  for (const ServerFlag& flag : ServerFlags()) {
    flags.push_back(
        {flag.name, flag.group, ServerFlagText(flag, config), ServerFlagText(flag, defaults)});
  }
  return flags;
}

StatusBoard::StatusBoard(StatusFacts facts, const Clock& clock, const HealthState& health,
                         ReadFamilies read_families)
    : facts_(std::move(facts)),
      clock_(clock),
      health_(health),
      read_families_(std::move(read_families)) {
  facts_.start_unix_seconds = UnixSeconds(clock_);
  thread_ = std::thread([this] { Run(); });
}

StatusBoard::~StatusBoard() { Stop(); }

void StatusBoard::Stop() {
  std::call_once(stop_once_, [this] {
    {
      const std::lock_guard lock(mutex_);
      stop_requested_ = true;
      stop_changed_.notify_all();
    }
    thread_.join();
  });
}

std::string StatusBoard::Json() const {
  const HealthState::Report health = health_.GetReport();
  StatusState state;
  state.unix_seconds = UnixSeconds(clock_);
  state.serving = health.state == HealthState::State::kServing;
  state.reason = health.reason;
  return StatusJson(facts_, state, ReadStatusTotals(read_families_()), history_.Samples());
}

void StatusBoard::Run() {
  std::unique_lock lock(mutex_);
  auto due = std::chrono::steady_clock::now();
  while (!stop_requested_) {
    lock.unlock();
    history_.Record(ReadStatusTotals(read_families_()), clock_.Now(), UnixSeconds(clock_));
    lock.lock();
    // By the plan, not by the end of the last reading: samples stay evenly spaced.
    due += StatusHistory::kPeriod;
    stop_changed_.wait_until(lock, due, [this] { return stop_requested_; });
  }
}

}  // namespace attnd
