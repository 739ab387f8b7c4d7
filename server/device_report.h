// What the log says about the GPU at start: everything that explains later figures. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "server/device_selection.h"
#include "server/nvml_library.h"

namespace attnd {

struct DeviceReport {
  // In the order of the log line; what nobody tells is "unknown".
  std::vector<std::pair<std::string, std::string>> fields;
  // Empty, or why the card is slower than it could be right now.
  std::string warning;

  std::string Text() const;  // "gpu=..., driver=..., ..."
};

DeviceReport ReportDevice(const DeviceChoice& choice, const CudaFacts& cuda, const NvmlFacts& nvml,
                          std::int64_t pool_bytes, std::int64_t free_bytes);

// NVML's bits in words; "none".
std::string ThrottleText(unsigned long long reasons);

// "580.159.03" out of the text of /proc/driver/nvidia/version; empty where it holds none.
std::string ParseDriverVersion(const std::string& text);

}  // namespace attnd
