// A Prometheus histogram whose observations take no lock (prometheus::Histogram holds a mutex in
// Observe): bins live in StripedCounters and are merged when scraped.
#pragma once

#include <span>
#include <vector>

#include "prometheus/client_metric.h"
#include "server/striped_counter.h"

namespace attnd {

// Bucket ladders, ascending upper bounds without +Inf.
//
// Inside a decade of the duration ladders neighbouring bounds differ by at most 1.5, so that a
// quantile interpolated from buckets is within 1.5x of the true one wherever it falls below 1 s.
std::span<const double> RequestDurationBounds();  // 20 us to 500 s
std::span<const double> KernelDurationBounds();   // 1 us to 50 s: kernels, stages, queue waits
std::span<const double> BatchSequenceBounds();    // 1 to 1024
std::span<const double> BatchTokenBounds();       // 1 to 1 Mi

// Thread-safe; Observe never blocks and a scrape never delays it.
class StripedHistogram {
 public:
  // `bounds` is one of the ladders above or otherwise outlives the histogram.
  explicit StripedHistogram(std::span<const double> bounds);

  // A bucket holds values up to and including its bound. False, and nothing is recorded, for a
  // value that is negative or not finite.
  bool Observe(double value) noexcept;

  // Cumulative buckets, +Inf last. The count is the sum of the bins read here, so that it always
  // equals the +Inf bucket; the sum may lead or trail it by observations made during the read.
  prometheus::ClientMetric::Histogram Collect() const;

 private:
  std::span<const double> bounds_;
  StripedCounters cells_;  // a bin per bound, the overflow bin, the sum of values
};

}  // namespace attnd
