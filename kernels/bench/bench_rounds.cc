#include "kernels/bench/bench_rounds.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace attnd::kernels::bench {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void Calibrate(Side& side, double block_seconds) {
  side.run(1);  // first touch, page faults
  const double once = side.run(1);
  side.calls =
      std::clamp(static_cast<int>(std::ceil(block_seconds / std::max(once, 1e-7))), 1, 1 << 20);
}

}  // namespace

Timing Summarise(std::vector<double> ms) {
  std::sort(ms.begin(), ms.end());
  const auto at = [&](double share) {
    return ms[static_cast<std::size_t>(std::lround(share * static_cast<double>(ms.size() - 1)))];
  };
  return {at(0.5), (at(0.75) - at(0.25)) / at(0.5)};
}

void RunRounds(std::vector<Side*>& sides, const MeasureOptions& options,
               const std::function<void()>& before_round) {
  for (Side* side : sides) Calibrate(*side, options.block_seconds);
  const Clock::time_point begin = Clock::now();
  for (int round = 0; round < options.min_rounds || SecondsSince(begin) < options.seconds;
       ++round) {
    if (before_round) before_round();
    for (std::size_t i = 0; i < sides.size(); ++i) {
      const std::size_t place = round % 2 == 0 ? i : sides.size() - 1 - i;
      Side& side = *sides[(place + round) % sides.size()];
      side.ms.push_back(side.run(side.calls) / side.calls * 1e3);
    }
  }
}

}  // namespace attnd::kernels::bench
