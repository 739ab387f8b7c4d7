// Monotonic sums that many threads add to without sharing a cache line.
//
// Each thread adds to one of kStripes copies of the whole array (its stripe, chosen round robin
// when the thread first adds anything); a reader sums the copies. Two threads meet on a copy only
// when more than kStripes threads are alive, and then retry one compare-and-swap: no lock is ever
// taken, by a recorder or by a reader.
#pragma once

#include <atomic>
#include <memory>

namespace attnd {

// Thread-safe. Values are doubles, as Prometheus stores them: whole counts stay exact to 2^53.
class StripedCounters {
 public:
  static constexpr int kStripes = 16;

  // `size` counters, all zero.
  explicit StripedCounters(int size);

  int size() const { return size_; }

  // Adds `value` to counter `index`. False, and nothing is added, for an index out of range and for
  // a value that is negative or not finite: one such value would spoil the sum for ever.
  bool Add(int index, double value) noexcept;

  // Sum over the stripes; an addition that runs at the same time may be in it or not.
  double Value(int index) const noexcept;

 private:
  static constexpr int kCellsPerLine = 8;
  struct alignas(64) Line {
    std::atomic<double> cells[kCellsPerLine] = {};
  };

  std::atomic<double>& Cell(int stripe, int index) const noexcept {
    return lines_[static_cast<std::size_t>(stripe) * lines_per_stripe_ + index / kCellsPerLine]
        .cells[index % kCellsPerLine];
  }

  int size_;
  int lines_per_stripe_;
  std::unique_ptr<Line[]> lines_;
};

}  // namespace attnd
