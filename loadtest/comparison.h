// Statistics of interleaved blocks: two sides measured in turn on one machine, compared pair by
// pair, so that a slow minute slows both.
#pragma once

#include <cstdint>
#include <span>

namespace attnd::loadtest {

// Of an unsorted list; the mean of the middle two for an even count; 0 for none.
double Median(std::span<const double> values);

struct Interval {
  double median = 0;
  double low = 0, high = 0;  // bootstrap percentile interval, 95 %
};

// The ratio of `numerator[i] / denominator[i]`, as a median over the pairs with its interval (2,000
// resamples of whole pairs; the same seed gives the same interval). Pairs with a denominator of 0
// are left out. Both spans have the same size.
Interval PairedRatio(std::span<const double> numerator, std::span<const double> denominator,
                     std::uint64_t seed);

}  // namespace attnd::loadtest
