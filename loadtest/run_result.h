// What a run measured. Every operation that was sent ends in exactly one of `ok` and `failures`.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "loadtest/latency_recorder.h"

namespace attnd::loadtest {

struct RunResult {
  using Duration = std::chrono::nanoseconds;

  // Operations due in the measured time (after the warm-up).
  std::int64_t sent = 0;
  std::int64_t ok = 0;
  std::map<std::string, std::int64_t> failures;  // by status code and reason
  std::int64_t skipped = 0;      // open loop: due with max_in_flight reached, not sent
  std::int64_t warmup_sent = 0;  // sent before the measured time, not counted above
  std::int64_t tokens = 0;       // answered by OK operations
  Duration warmup{0};            // before the measured time
  Duration measured{0};          // from the end of the warm-up to the last answer

  // OK operations only.
  LatencyRecorder latency;       // from the intended start
  LatencyRecorder service_time;  // from the actual start
  LatencyRecorder schedule_lag;  // actual minus intended start, of everything sent
  LatencyRecorder kernel_time, queue_time;
  std::int64_t batch_requests_sum = 0;
  std::set<std::string> kernels;

  bool interrupted = false;
  std::optional<bool> settled;  // whether the warm-up ended by RunOptions::settle_tolerance
  bool gave_up = false;         // no success for RunOptions::give_up
  std::string first_failure;    // its status in full

  std::int64_t failed() const;
  double failure_ratio() const;  // of those sent; 0 when nothing was
  double tokens_per_second() const;
  double requests_per_second() const;

  // For blocks of one run. `measured` adds up.
  void Merge(const RunResult& other);
};

}  // namespace attnd::loadtest
