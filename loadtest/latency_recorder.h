// A log-linear histogram of durations: 128 bins an octave, so that a percentile is within 1/256 of
// the exact one; minimum, maximum, sum and count are exact. Recorders merge without loss.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace attnd::loadtest {

// Not thread-safe. 58 KiB each.
class LatencyRecorder {
 public:
  using Duration = std::chrono::nanoseconds;

  // All that a recorder holds, for another process: bins are pairs of index and count.
  struct State {
    std::int64_t count = 0, sum = 0, min = 0, max = 0;
    std::vector<std::pair<std::size_t, std::int64_t>> bins;
  };

  LatencyRecorder();
  // Bins that no recorder has are left out.
  explicit LatencyRecorder(const State& state);
  State state() const;

  // Negative durations count as 0.
  void Record(Duration value);
  void Merge(const LatencyRecorder& other);

  // The smallest value that at least `quantile` of the recorded ones do not exceed, as the middle
  // of its bin. quantile: 0 (the minimum) to 1 (the maximum). 0 when nothing is recorded.
  Duration Percentile(double quantile) const;

  std::int64_t count() const { return count_; }
  Duration min() const { return Duration(count_ > 0 ? min_ : 0); }
  Duration max() const { return Duration(max_); }
  Duration mean() const { return Duration(count_ > 0 ? sum_ / count_ : 0); }
  // Values up to `limit`, a bin that holds it included.
  std::int64_t CountUpTo(Duration limit) const;

 private:
  std::vector<std::int64_t> bins_;
  std::int64_t count_ = 0;
  std::int64_t sum_ = 0;
  std::int64_t min_ = 0;
  std::int64_t max_ = 0;
};

}  // namespace attnd::loadtest
