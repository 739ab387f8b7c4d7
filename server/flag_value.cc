#include "server/flag_value.h"

#include <charconv>
#include <cmath>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace attnd {
namespace {

struct Unit {
  std::string_view name;
  std::int64_t factor;
};

// Largest first, so that formatting finds the shortest text.
constexpr Unit kDurationUnits[] = {
    {"d", 86'400'000}, {"h", 3'600'000}, {"m", 60'000}, {"s", 1000}, {"ms", 1}};
constexpr Unit kBinaryUnits[] = {{"TiB", std::int64_t{1} << 40},
                                 {"GiB", std::int64_t{1} << 30},
                                 {"MiB", std::int64_t{1} << 20},
                                 {"KiB", std::int64_t{1} << 10}};
constexpr Unit kDecimalUnits[] = {
    {"TB", 1'000'000'000'000}, {"GB", 1'000'000'000}, {"MB", 1'000'000}, {"kB", 1000}, {"B", 1}};

// Values stay below 2^53, so that a product with a fraction is exact enough to be checked for a
// whole result.
constexpr double kMaxValue = 9007199254740992.0;

absl::Status Need(std::string_view need) { return absl::InvalidArgumentError(std::string(need)); }

const Unit* FindUnit(std::span<const Unit> units, std::string_view name) {
  for (const Unit& unit : units) {
    if (unit.name == name) return &unit;
  }
  return nullptr;
}

// A decimal number times a unit, as a whole number; -1 where it is none.
std::int64_t Scale(std::string_view number, std::int64_t factor) {
  if (number.empty() || number.find_first_not_of("0123456789.") != std::string_view::npos)
    return -1;
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc() || end != number.data() + number.size()) return -1;
  value *= static_cast<double>(factor);
  if (value > kMaxValue || std::abs(value - std::round(value)) > 1e-6) return -1;
  return static_cast<std::int64_t>(std::llround(value));
}

struct NumberAndUnit {
  std::string_view number, unit;
};

NumberAndUnit Split(std::string_view text) {
  const std::size_t end = text.find_first_not_of("0123456789.");
  if (end == std::string_view::npos) return {text, {}};
  return {text.substr(0, end), text.substr(end)};
}

std::string FormatWith(std::span<const Unit> units, std::int64_t value) {
  if (value == 0) return "0";
  for (const Unit& unit : units) {
    if (value % unit.factor == 0) return absl::StrCat(value / unit.factor, std::string(unit.name));
  }
  return absl::StrCat(value);
}

}  // namespace

absl::StatusOr<bool> ParseBool(std::string_view text) {
  if (text == "true" || text == "on" || text == "yes" || text == "1") return true;
  if (text == "false" || text == "off" || text == "no" || text == "0") return false;
  return Need("true or false");
}

absl::StatusOr<std::int64_t> ParseCount(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return Need("a whole number");
  return value;
}

absl::StatusOr<std::chrono::milliseconds> ParseDuration(std::string_view text) {
  if (text == "0") return std::chrono::milliseconds(0);
  const NumberAndUnit parts = Split(text);
  const Unit* unit = FindUnit(kDurationUnits, parts.unit);
  const std::int64_t value = unit == nullptr ? -1 : Scale(parts.number, unit->factor);
  if (value < 0) return Need("a duration with its unit, like 250ms, 5s, 10m or 1h");
  return std::chrono::milliseconds(value);
}

absl::StatusOr<std::int64_t> ParseByteSize(std::string_view text) {
  const NumberAndUnit parts = Split(text);
  const Unit* unit = FindUnit(kBinaryUnits, parts.unit);
  if (unit == nullptr) unit = FindUnit(kDecimalUnits, parts.unit.empty() ? "B" : parts.unit);
  const std::int64_t value = unit == nullptr ? -1 : Scale(parts.number, unit->factor);
  if (value < 0) return Need("a size like 512MiB, 4GiB or a number of bytes");
  return value;
}

std::string FormatDuration(std::chrono::milliseconds duration) {
  return FormatWith(kDurationUnits, duration.count());
}

std::string FormatByteSize(std::int64_t bytes) { return FormatWith(kBinaryUnits, bytes); }

}  // namespace attnd
