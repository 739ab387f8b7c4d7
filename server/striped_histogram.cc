#include "server/striped_histogram.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace attnd {
namespace {

// Steps inside a decade: 1.5, 1.33, 1.5, 1.33, 1.5, 1.33 and 1.25 to the next decade. Bounds are
// written out as decimal literals: 15 * 1e-6 would print as 1.4999999999999999e-05.
constexpr double kRequestDurationBounds[] = {
    0.00002, 0.00003, 0.00004, 0.00006, 0.00008,                  //
    0.0001,  0.00015, 0.0002,  0.0003,  0.0004,  0.0006, 0.0008,  //
    0.001,   0.0015,  0.002,   0.003,   0.004,   0.006,  0.008,   //
    0.01,    0.015,   0.02,    0.03,    0.04,    0.06,   0.08,    //
    0.1,     0.15,    0.2,     0.3,     0.4,     0.6,    0.8,     //
    1,       2,       5,       10,      20,      50,     100,    200, 500};

constexpr double kKernelDurationBounds[] = {
    0.000001, 0.000002, 0.000003, 0.000004, 0.000005, 0.000006, 0.000008,  //
    0.00001,  0.000015, 0.00002,  0.00003,  0.00004,  0.00006,  0.00008,   //
    0.0001,   0.00015,  0.0002,   0.0003,   0.0004,   0.0006,   0.0008,    //
    0.001,    0.0015,   0.002,    0.003,    0.004,    0.006,    0.008,     //
    0.01,     0.015,    0.02,     0.03,     0.04,     0.06,     0.08,      //
    0.1,      0.15,     0.2,      0.3,      0.4,      0.6,      0.8,       //
    1,        2,        5,        10,       20,       50};

constexpr double kBatchSequenceBounds[] = {1,  2,  3,  4,  6,   8,   12,  16,  24,
                                           32, 48, 64, 96, 128, 192, 256, 512, 1024};

constexpr double kBatchTokenBounds[] = {1,     2,     4,     8,      16,     32,     64,
                                        128,   256,   512,   1024,   2048,   4096,   8192,
                                        16384, 32768, 65536, 131072, 262144, 524288, 1048576};

}  // namespace

std::span<const double> RequestDurationBounds() { return kRequestDurationBounds; }
std::span<const double> KernelDurationBounds() { return kKernelDurationBounds; }
std::span<const double> BatchSequenceBounds() { return kBatchSequenceBounds; }
std::span<const double> BatchTokenBounds() { return kBatchTokenBounds; }

StripedHistogram::StripedHistogram(std::span<const double> bounds)
    : bounds_(bounds), cells_(static_cast<int>(bounds.size()) + 2) {}

bool StripedHistogram::Observe(double value) noexcept {
  if (!std::isfinite(value) || value < 0) return false;
  const auto bin = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  cells_.Add(cells_.size() - 1, value);
  return cells_.Add(static_cast<int>(bin), 1);
}

prometheus::ClientMetric::Histogram StripedHistogram::Collect() const {
  prometheus::ClientMetric::Histogram histogram;
  histogram.bucket.reserve(bounds_.size() + 1);
  std::uint64_t cumulative_count = 0;
  for (std::size_t bin = 0; bin <= bounds_.size(); ++bin) {
    cumulative_count += static_cast<std::uint64_t>(cells_.Value(static_cast<int>(bin)));
    const double upper_bound =
        bin < bounds_.size() ? bounds_[bin] : std::numeric_limits<double>::infinity();
    histogram.bucket.push_back({cumulative_count, upper_bound});
  }
  histogram.sample_count = cumulative_count;
  histogram.sample_sum = cells_.Value(cells_.size() - 1);
  return histogram;
}

}  // namespace attnd
