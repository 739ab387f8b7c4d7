// Where and when a report was made.
#pragma once

#include <cstdint>
#include <string>

namespace attnd::loadtest {

struct MachineInfo {
  std::string cpu_model;  // "unknown" where the system does not tell
  int cores = 0;          // that this process may use
  std::int64_t memory_bytes = 0;
  std::string kernel;  // of the operating system
};

MachineInfo ThisMachine();

// UTC, "2025-11-29T18:00:00Z".
std::string DateNow();

}  // namespace attnd::loadtest
