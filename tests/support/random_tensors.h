// Reproducible test data: SplitMix64, the same numbers in every language.
#pragma once

#include <cstdint>
#include <vector>

namespace attnd {

// SplitMix64 started with state = seed.
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}

  std::uint64_t Next() {
    state_ += 0x9E3779B97F4A7C15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31U);
  }

  // In [-amplitude, amplitude): 24 random bits.
  double NextValue(double amplitude) {
    const double u = static_cast<double>(Next() >> 40U) / 16777216.0;
    return amplitude * (2 * u - 1);
  }

 private:
  std::uint64_t state_;
};

// n values of amplitude * (2u - 1), rounded to FP32 (and by whoever stores them to their type).
inline std::vector<float> RandomValues(std::uint64_t seed, std::int64_t n, double amplitude) {
  SplitMix64 generator(seed);
  std::vector<float> values(n);
  for (float& value : values) value = static_cast<float>(generator.NextValue(amplitude));
  return values;
}

}  // namespace attnd
