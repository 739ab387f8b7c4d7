#include "server/device_report.h"

#include <cctype>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace attnd {
namespace {

struct Reason {
  unsigned long long bit;
  const char* name;
  bool slows;  // something holds the card back, other than having nothing to do
};
constexpr Reason kReasons[] = {
    {0x1, "idle", false},
    {0x2, "application clocks", false},
    {0x4, "power cap", true},
    {0x8, "hardware slowdown", true},
    {0x10, "sync boost", false},
    {0x20, "software thermal slowdown", true},
    {0x40, "hardware thermal slowdown", true},
    {0x80, "power brake", true},
    {0x100, "display clocks", false},
};

std::string OnOff(const std::optional<bool>& value) {
  if (!value) return "unknown";
  return *value ? "on" : "off";
}

std::string Clocks(const std::optional<int>& now, const std::optional<int>& max) {
  const auto text = [](const std::optional<int>& value) {
    return value ? absl::StrCat(*value) : std::string("unknown");
  };
  return absl::StrCat(text(now), " of ", text(max), " MHz");
}

std::string GiB(std::int64_t bytes) {
  const auto tenths = static_cast<std::int64_t>(static_cast<double>(bytes) / (1 << 30) * 10);
  return absl::StrCat(tenths / 10, ".", tenths % 10, " GiB");
}

std::string CudaVersion(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

}  // namespace

std::string ThrottleText(unsigned long long reasons) {
  std::vector<std::string> names;
  for (const Reason& reason : kReasons) {
    if ((reasons & reason.bit) != 0) names.emplace_back(reason.name);
    reasons &= ~reason.bit;
  }
  if (reasons != 0) names.push_back(absl::StrCat("0x", absl::Hex(reasons)));
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

std::string ParseDriverVersion(const std::string& text) {
  for (const absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" \t\n"))) {
    const bool digits_and_dots = word.find_first_not_of("0123456789.") == absl::string_view::npos;
    if (digits_and_dots && word.find('.') != absl::string_view::npos &&
        std::isdigit(static_cast<unsigned char>(word.front())) != 0) {
      return std::string(word);
    }
  }
  return "";
}

std::string DeviceReport::Text() const {
  return absl::StrJoin(fields, "; ", absl::PairFormatter(" "));
}

DeviceReport ReportDevice(const DeviceChoice& choice, const CudaFacts& cuda, const NvmlFacts& nvml,
                          std::int64_t pool_bytes, std::int64_t free_bytes) {
  const std::string driver =
      nvml.driver_version.empty() ? cuda.driver_version : nvml.driver_version;
  DeviceReport report;
  report.fields = {
      {"gpu", choice.gpu.name},
      {"device", choice.device_name},
      {"compute capability",
       absl::StrCat(choice.gpu.compute_capability / 10, ".", choice.gpu.compute_capability % 10)},
      {"kernels", choice.kernel_arch},
      {"driver", driver.empty() ? "unknown" : driver},
      {"CUDA", absl::StrCat(CudaVersion(cuda.supported_version), ", built for ",
                            CudaVersion(cuda.needed_version))},
      {"memory", GiB(choice.gpu.memory_bytes)},
      {"cache", GiB(pool_bytes)},
      {"left", GiB(free_bytes)},
      {"ECC", OnOff(nvml.ecc)},
      {"power limit", nvml.power_limit_watts ? absl::StrCat(*nvml.power_limit_watts, " W")
                                             : std::string("unknown")},
      {"SM clock", Clocks(nvml.sm_clock_mhz, nvml.max_sm_clock_mhz)},
      {"memory clock", Clocks(nvml.memory_clock_mhz, nvml.max_memory_clock_mhz)},
      {"throttled by",
       nvml.throttle_reasons ? ThrottleText(*nvml.throttle_reasons) : std::string("unknown")},
      {"persistence", OnOff(nvml.persistence)},
  };
  unsigned long long slowing = 0;
  for (const Reason& reason : kReasons) {
    if (reason.slows) slowing |= nvml.throttle_reasons.value_or(0) & reason.bit;
  }
  if (slowing != 0) {
    report.warning = absl::StrCat("the GPU is held back: ", ThrottleText(slowing));
  }
  return report;
}

}  // namespace attnd
