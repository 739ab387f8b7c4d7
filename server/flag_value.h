// Text of configuration values, the same on the command line and in the configuration file:
// durations like 250ms, 5s or 10m, sizes like 512MiB or 4GiB.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace attnd {

// Errors say what is needed, not what was got nor for which flag.
absl::StatusOr<bool> ParseBool(std::string_view text);
absl::StatusOr<std::int64_t> ParseCount(std::string_view text);
// A number, whole or with a fraction, and a unit: ms, s, m, h or d; plain 0 too. Whole
// milliseconds.
absl::StatusOr<std::chrono::milliseconds> ParseDuration(std::string_view text);
// A whole number of bytes, or a number with KiB, MiB, GiB, TiB, or kB, MB, GB, TB (powers of 1000).
absl::StatusOr<std::int64_t> ParseByteSize(std::string_view text);

// The shortest text that parses to the same value.
std::string FormatDuration(std::chrono::milliseconds duration);
std::string FormatByteSize(std::int64_t bytes);

}  // namespace attnd
