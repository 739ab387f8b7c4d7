// The metric series of one (kernel, device) pair, and the list that finds them without a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "server/clock.h"
#include "server/striped_histogram.h"

namespace attnd {

// Modelled bytes and kernel time of the launches completed in the last kWindow, in one-second
// slots. Thread-safe, lock-free: a slot is one word that holds its second and its sum, so that a
// slot of an old second is replaced and a current one added to by a single compare-and-swap.
class ThroughputWindow {
 public:
  static constexpr std::chrono::seconds kWindow{10};

  void Add(Clock::TimePoint now, double bytes, double seconds) noexcept;
  // Bytes over kernel time of the window that ends now; 0 where nothing ran.
  double BytesPerSecond(Clock::TimePoint now) const noexcept;

 private:
  // Beyond the window, so that a slot is never reused while a reader may still count it.
  static constexpr int kSlots = 16;
  struct Slot {
    std::atomic<std::uint64_t> bytes{0}, nanoseconds{0};
  };
  std::array<Slot, kSlots> slots_;
};

struct KernelSeries {
  enum Counter : int { kBusySeconds, kReadBytes, kWriteBytes, kFlops, kNumCounters };

  KernelSeries(std::string_view kernel_name, std::string_view device_name)
      : kernel(kernel_name), device(device_name) {}

  const std::string kernel, device;
  StripedHistogram duration{KernelDurationBounds()};
  StripedCounters counters{kNumCounters};
  ThroughputWindow window;
  KernelSeries* next = nullptr;  // set before the series is published, never changed afterwards
};

// Append-only. Thread-safe: lookups walk the list, a first launch of a kernel adds its series by
// compare-and-swap. The number of series is bounded so that a fault in a caller's names cannot
// grow memory or the exposition.
class KernelSeriesList {
 public:
  static constexpr int kMaxSeries = 512;

  KernelSeriesList() = default;
  ~KernelSeriesList();
  KernelSeriesList(const KernelSeriesList&) = delete;
  KernelSeriesList& operator=(const KernelSeriesList&) = delete;

  // Null when the list is full or memory is short.
  KernelSeries* FindOrAdd(std::string_view kernel, std::string_view device) noexcept;

  // Most recently added first; follow `next`.
  const KernelSeries* first() const { return head_.load(std::memory_order_acquire); }

 private:
  std::atomic<KernelSeries*> head_{nullptr};
};

}  // namespace attnd
