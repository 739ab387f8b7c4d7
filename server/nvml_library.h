// What NVIDIA's management library tells about a GPU. The library comes with the driver and is
// loaded at run time: a machine without it starts as well and knows less.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "server/device_sensors.h"

namespace attnd {

// Absent: the library is missing, or the GPU does not tell.
struct NvmlFacts {
  std::string driver_version;  // empty: not told
  std::optional<bool> ecc, persistence;
  std::optional<double> power_limit_watts;
  std::optional<int> sm_clock_mhz, max_sm_clock_mhz, memory_clock_mhz, max_memory_clock_mhz;
  std::optional<unsigned long long> throttle_reasons;  // NVML's bits
};

inline constexpr char kNvmlLibrary[] = "libnvidia-ml.so.1";

// `library`: file name or path of the library. `uuid` names the GPU; empty: only the driver's
// version is read.
NvmlFacts ReadNvmlFacts(const std::string& library, const std::string& uuid);

// The sensors of the GPU that `uuid` names, or of the library's first one where it is empty. Keeps
// the library loaded. Null: no library, or it does not know the GPU.
std::unique_ptr<DeviceSensors> OpenNvmlSensors(const std::string& library, const std::string& uuid);

}  // namespace attnd
