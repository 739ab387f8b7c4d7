#include "server/kernel_series.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>

namespace attnd {
namespace {

// A slot word: 20 bits of second, 44 bits of sum. 2^44 bytes in a second is 17.6 TB/s, 2^44 ns is
// 4.9 hours of kernel time; sums saturate. Seconds repeat after 12 days: a slot that was last
// written exactly that long ago would count once more.
constexpr int kSumBits = 44;
constexpr std::uint64_t kMaxSum = (std::uint64_t{1} << kSumBits) - 1;
constexpr std::uint64_t kSecondMask = (std::uint64_t{1} << (64 - kSumBits)) - 1;

// Counted from 1, so that an untouched slot (0) belongs to no second before a wrap.
std::int64_t SecondOf(Clock::TimePoint time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch()).count() + 1;
}

std::uint64_t TagOf(std::int64_t second) {
  return static_cast<std::uint64_t>(second) & kSecondMask;
}

void AddToSlot(std::atomic<std::uint64_t>& slot, std::uint64_t tag, double amount) noexcept {
  const auto added =
      amount >= static_cast<double>(kMaxSum) ? kMaxSum : static_cast<std::uint64_t>(amount);
  std::uint64_t word = slot.load(std::memory_order_relaxed);
  std::uint64_t replaced = 0;
  do {
    const std::uint64_t before = (word >> kSumBits) == tag ? word & kMaxSum : 0;
    replaced = tag << kSumBits | std::min(kMaxSum, before + added);
  } while (!slot.compare_exchange_weak(word, replaced, std::memory_order_relaxed));
}

std::uint64_t SumOfSlot(const std::atomic<std::uint64_t>& slot, std::uint64_t tag) noexcept {
  const std::uint64_t word = slot.load(std::memory_order_relaxed);
  return (word >> kSumBits) == tag ? word & kMaxSum : 0;
}

}  // namespace

void ThroughputWindow::Add(Clock::TimePoint now, double bytes, double seconds) noexcept {
  if (!std::isfinite(bytes) || !std::isfinite(seconds) || bytes < 0 || seconds < 0) return;
  const std::int64_t second = SecondOf(now);
  Slot& slot = slots_[static_cast<std::size_t>(second) % kSlots];
  AddToSlot(slot.bytes, TagOf(second), bytes);
  AddToSlot(slot.nanoseconds, TagOf(second), std::round(seconds * 1e9));
}

double ThroughputWindow::BytesPerSecond(Clock::TimePoint now) const noexcept {
  const std::int64_t last = SecondOf(now);
  double bytes = 0;
  double nanoseconds = 0;
  for (std::int64_t second = last - kWindow.count() + 1; second <= last; ++second) {
    const Slot& slot = slots_[static_cast<std::size_t>(second) % kSlots];
    bytes += static_cast<double>(SumOfSlot(slot.bytes, TagOf(second)));
    nanoseconds += static_cast<double>(SumOfSlot(slot.nanoseconds, TagOf(second)));
  }
  return nanoseconds > 0 ? bytes / (nanoseconds * 1e-9) : 0;
}

KernelSeriesList::~KernelSeriesList() {
  KernelSeries* series = head_.load(std::memory_order_acquire);
  while (series != nullptr) {
    const std::unique_ptr<KernelSeries> owned(series);
    series = owned->next;
  }
}

KernelSeries* KernelSeriesList::FindOrAdd(std::string_view kernel,
                                          std::string_view device) noexcept {
  std::unique_ptr<KernelSeries> added;
  KernelSeries* head = head_.load(std::memory_order_acquire);
  while (true) {
    int num_series = 0;
    for (KernelSeries* series = head; series != nullptr; series = series->next, ++num_series) {
      if (series->kernel == kernel && series->device == device) return series;
    }
    if (num_series >= kMaxSeries) return nullptr;
    if (added == nullptr) {
      try {
        added = std::make_unique<KernelSeries>(kernel, device);
      } catch (const std::bad_alloc&) {
        return nullptr;
      }
    }
    added->next = head;
    // On failure another thread published a series: it may be this very one, so look again.
    if (head_.compare_exchange_strong(head, added.get(), std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
      return added.release();
    }
  }
}

}  // namespace attnd
