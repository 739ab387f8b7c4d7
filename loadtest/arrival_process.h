// When an open loop sends: a plan made before anything is measured, so that a slow server cannot
// slow it down.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"

namespace attnd::loadtest {

// Pure: the same seed gives the same plan. Not thread-safe.
class ArrivalProcess {
 public:
  using Duration = std::chrono::nanoseconds;
  ArrivalProcess() = default;
  ArrivalProcess(const ArrivalProcess&) = delete;
  ArrivalProcess& operator=(const ArrivalProcess&) = delete;
  virtual ~ArrivalProcess() = default;

  // Offset of the next arrival from the start; never decreases.
  virtual Duration Next() = 0;
};

// Equal gaps of 1 / rate; the first arrival is at 0. rate > 0, per second.
std::unique_ptr<ArrivalProcess> ConstantArrivals(double rate);

// Independent exponential gaps with mean 1 / rate.
std::unique_ptr<ArrivalProcess> PoissonArrivals(double rate, std::uint64_t seed);

// Bursts: a second of Poisson arrivals at four times the rate, then three seconds of silence.
std::unique_ptr<ArrivalProcess> BurstArrivals(double rate, std::uint64_t seed);

// "constant", "poisson" or "burst". INVALID_ARGUMENT: another name, or a rate that is not a
// positive number.
absl::StatusOr<std::unique_ptr<ArrivalProcess>> MakeArrivals(std::string_view kind, double rate,
                                                             std::uint64_t seed);

}  // namespace attnd::loadtest
