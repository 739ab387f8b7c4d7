#include "loadtest/comparison.h"

#include <algorithm>
#include <random>
#include <vector>

namespace attnd::loadtest {
namespace {
constexpr int kResamples = 2000;
constexpr double kTail = 0.025;
}  // namespace

double Median(std::span<const double> values) {
  if (values.empty()) return 0;
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const std::size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

Interval PairedRatio(std::span<const double> numerator, std::span<const double> denominator,
                     std::uint64_t seed) {
  std::vector<double> ratios;
  // A side of which every request failed has fewer blocks, or none.
  const std::size_t blocks = std::min(numerator.size(), denominator.size());
  for (std::size_t i = 0; i < blocks; ++i) {
    if (denominator[i] > 0) ratios.push_back(numerator[i] / denominator[i]);
  }
  Interval interval;
  if (ratios.empty()) return interval;
  interval.median = Median(ratios);
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<std::size_t> pick(0, ratios.size() - 1);
  std::vector<double> medians(kResamples);
  std::vector<double> sample(ratios.size());
  for (double& median : medians) {
    for (double& value : sample) value = ratios[pick(random)];
    median = Median(sample);
  }
  std::sort(medians.begin(), medians.end());
  interval.low = medians[static_cast<std::size_t>(kTail * kResamples)];
  interval.high = medians[static_cast<std::size_t>((1 - kTail) * kResamples) - 1];
  return interval;
}

}  // namespace attnd::loadtest
