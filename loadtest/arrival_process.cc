#include "loadtest/arrival_process.h"

#include <cmath>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"

namespace attnd::loadtest {
namespace {

constexpr double kNanosecondsPerSecond = 1e9;

class Constant final : public ArrivalProcess {
 public:
  explicit Constant(double rate) : gap_(kNanosecondsPerSecond / rate) {}
  // By multiplication: adding gaps would add up their rounding.
  Duration Next() override {
    return Duration(static_cast<std::int64_t>(gap_ * static_cast<double>(count_++)));
  }

 private:
  const double gap_;
  std::int64_t count_ = 0;
};

class Poisson final : public ArrivalProcess {
 public:
  Poisson(double rate, std::uint64_t seed) : random_(seed), gap_(rate / kNanosecondsPerSecond) {}
  Duration Next() override {
    offset_ += gap_(random_);
    return Duration(static_cast<std::int64_t>(offset_));
  }

 private:
  std::mt19937_64 random_;
  std::exponential_distribution<double> gap_;
  double offset_ = 0;
};

class Burst final : public ArrivalProcess {
 public:
  static constexpr std::int64_t kPeriods = 4;  // of kBusy: one is busy, the others are silent
  static constexpr Duration kBusy = std::chrono::seconds(1);

  Burst(double rate, std::uint64_t seed) : busy_(rate * static_cast<double>(kPeriods), seed) {}
  Duration Next() override {
    const Duration busy = busy_.Next();
    return busy / kBusy * kPeriods * kBusy + busy % kBusy;
  }

 private:
  Poisson busy_;  // in busy time alone
};

}  // namespace

std::unique_ptr<ArrivalProcess> ConstantArrivals(double rate) {
  return std::make_unique<Constant>(rate);
}

std::unique_ptr<ArrivalProcess> PoissonArrivals(double rate, std::uint64_t seed) {
  return std::make_unique<Poisson>(rate, seed);
}

std::unique_ptr<ArrivalProcess> BurstArrivals(double rate, std::uint64_t seed) {
  return std::make_unique<Burst>(rate, seed);
}

absl::StatusOr<std::unique_ptr<ArrivalProcess>> MakeArrivals(std::string_view kind, double rate,
                                                             std::uint64_t seed) {
  if (!std::isfinite(rate) || rate <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("rate: got ", rate, ", need more than 0"));
  }
  if (kind == "constant") return ConstantArrivals(rate);
  if (kind == "poisson") return PoissonArrivals(rate, seed);
  if (kind == "burst") return BurstArrivals(rate, seed);
  return absl::InvalidArgumentError(
      absl::StrCat("arrivals: got '", std::string(kind), "', need constant, poisson or burst"));
}

}  // namespace attnd::loadtest
