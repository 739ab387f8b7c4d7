#include "server/striped_counter.h"

#include <cmath>

namespace attnd {
namespace {

int ThreadStripe() noexcept {
  static std::atomic<unsigned> next_stripe{0};
  thread_local const int stripe = static_cast<int>(
      next_stripe.fetch_add(1, std::memory_order_relaxed) % StripedCounters::kStripes);
  return stripe;
}

}  // namespace

StripedCounters::StripedCounters(int size)
    : size_(size),
      lines_per_stripe_((size + kCellsPerLine - 1) / kCellsPerLine),
      lines_(std::make_unique<Line[]>(static_cast<std::size_t>(lines_per_stripe_) * kStripes)) {}

bool StripedCounters::Add(int index, double value) noexcept {
  if (index < 0 || index >= size_ || !std::isfinite(value) || value < 0) return false;
  Cell(ThreadStripe(), index).fetch_add(value, std::memory_order_relaxed);
  return true;
}

double StripedCounters::Value(int index) const noexcept {
  double sum = 0;
  if (index < 0 || index >= size_) return sum;
  for (int stripe = 0; stripe < kStripes; ++stripe) {
    sum += Cell(stripe, index).load(std::memory_order_relaxed);
  }
  return sum;
}

}  // namespace attnd
