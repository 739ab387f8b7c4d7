// The last minutes of the status page: one sample each period, in a ring. Thread-safe.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/clock.h"
#include "server/status_totals.h"

namespace attnd {

// What happened between two readings, and the state at the second one.
struct StatusSample {
  struct Latency {
    double answers = 0;
    double p50_seconds = -1, p99_seconds = -1;  // bounds of buckets; negative without answers
  };
  double unix_seconds = 0;
  double period_seconds = 0;
  std::vector<KernelTotals> kernels;       // those that ran
  std::map<std::string, Latency> latency;  // by method; those that answered
  Distribution batch_sequences;
  double answers = 0;
  double queue_depth = 0, running_batches = 0, sequences = 0, cache_bytes_used = 0;
};

class StatusHistory {
 public:
  static constexpr std::chrono::seconds kPeriod{2};
  static constexpr std::size_t kMaxSamples = 300;  // ten minutes

  // The first reading makes no sample: it is what the second one is compared with. `now` does not
  // go back.
  void Record(const StatusTotals& totals, Clock::TimePoint now, double unix_seconds);
  // Oldest first.
  std::vector<StatusSample> Samples() const;

 private:
  mutable std::mutex mutex_;
  bool has_last_ ABSL_GUARDED_BY(mutex_) = false;
  StatusTotals last_ ABSL_GUARDED_BY(mutex_);
  Clock::TimePoint last_time_ ABSL_GUARDED_BY(mutex_);
  std::deque<StatusSample> samples_ ABSL_GUARDED_BY(mutex_);
};

// Launches of the last kWindow in which the kernel ran: a point of the roofline. A kernel that is
// idle keeps its last point.
struct KernelWindow {
  static constexpr std::chrono::seconds kWindow{10};
  KernelTotals totals;
  double last_unix_seconds = 0;  // the end of the newest sample in which it ran
};
// Pure; by name.
std::vector<KernelWindow> LastKernelWindows(const std::vector<StatusSample>& samples);

}  // namespace attnd
