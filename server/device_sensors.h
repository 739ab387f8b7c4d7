// What the sensors of a GPU tell now. The interface behind which NVML stands (nvml_library.h).
#pragma once

#include <optional>
#include <string>

namespace attnd {

// What is absent the GPU does not tell.
struct DeviceReading {
  std::string device;  // the `device` label of metrics; empty: there is no reading
  // Of the whole GPU, other processes included.
  std::optional<double> memory_used_bytes, memory_free_bytes;
  // 0 to 1: share of the last moments in which a kernel ran, a memory access was under way.
  std::optional<double> compute_utilization, memory_utilization;
  std::optional<double> sm_clock_hertz, memory_clock_hertz;
  std::optional<double> power_watts;
  std::optional<double> temperature_celsius;
};

class DeviceSensors {
 public:
  virtual ~DeviceSensors() = default;
  // May take long: a driver in trouble answers late or never. One call at a time.
  virtual DeviceReading Read() = 0;
};

}  // namespace attnd
