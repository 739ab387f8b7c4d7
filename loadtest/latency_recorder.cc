#include "loadtest/latency_recorder.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace attnd::loadtest {
namespace {

constexpr int kBinsPerOctave = 128;
constexpr int kLinearBits = 8;  // values below 2^8 have a bin each
constexpr int kOctaves = 63 - kLinearBits;
constexpr std::size_t kNumBins = (kOctaves + 2) * kBinsPerOctave;

int ShiftOf(std::uint64_t value) {
  return std::max(0, static_cast<int>(std::bit_width(value)) - kLinearBits);
}

std::size_t BinOf(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  const int shift = ShiftOf(bits);
  return static_cast<std::size_t>(shift) * kBinsPerOctave + static_cast<std::size_t>(bits >> shift);
}

std::int64_t MiddleOf(std::size_t bin) {
  if (bin < (std::size_t{1} << kLinearBits)) return static_cast<std::int64_t>(bin);
  const int shift = static_cast<int>(bin / kBinsPerOctave) - 1;
  const auto mantissa = static_cast<std::int64_t>(bin % kBinsPerOctave + kBinsPerOctave);
  return (mantissa << shift) + ((std::int64_t{1} << shift) >> 1);
}

}  // namespace

LatencyRecorder::LatencyRecorder() : bins_(kNumBins) {}

LatencyRecorder::LatencyRecorder(const State& state)
    : bins_(kNumBins), count_(state.count), sum_(state.sum), min_(state.min), max_(state.max) {
  for (const auto& [bin, count] : state.bins) {
    if (bin < kNumBins) bins_[bin] = count;
  }
}

LatencyRecorder::State LatencyRecorder::state() const {
  State state{count_, sum_, min_, max_, {}};
  for (std::size_t bin = 0; bin < kNumBins; ++bin) {
    if (bins_[bin] != 0) state.bins.emplace_back(bin, bins_[bin]);
  }
  return state;
}

void LatencyRecorder::Record(Duration value) {
  const std::int64_t count = std::max<std::int64_t>(0, value.count());
  ++bins_[BinOf(count)];
  min_ = count_ == 0 ? count : std::min(min_, count);
  max_ = std::max(max_, count);
  sum_ += count;
  ++count_;
}

void LatencyRecorder::Merge(const LatencyRecorder& other) {
  if (other.count_ == 0) return;
  for (std::size_t bin = 0; bin < kNumBins; ++bin) bins_[bin] += other.bins_[bin];
  min_ = count_ == 0 ? other.min_ : std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
  sum_ += other.sum_;
  count_ += other.count_;
}

LatencyRecorder::Duration LatencyRecorder::Percentile(double quantile) const {
  if (count_ == 0) return Duration(0);
  const auto rank = std::clamp<std::int64_t>(
      static_cast<std::int64_t>(std::ceil(quantile * static_cast<double>(count_))), 1, count_);
  if (rank == count_) return max();
  std::int64_t seen = 0;
  for (std::size_t bin = 0; bin < kNumBins; ++bin) {
    seen += bins_[bin];
    if (seen >= rank) return Duration(std::clamp(MiddleOf(bin), min_, max_));
  }
  return max();
}

std::int64_t LatencyRecorder::CountUpTo(Duration limit) const {
  if (limit.count() < 0) return 0;
  std::int64_t seen = 0;
  for (std::size_t bin = 0; bin <= BinOf(limit.count()); ++bin) seen += bins_[bin];
  return seen;
}

}  // namespace attnd::loadtest
