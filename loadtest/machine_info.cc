#include "loadtest/machine_info.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace attnd::loadtest {
namespace {

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

}  // namespace

MachineInfo ThisMachine() {
  MachineInfo info;
  info.cpu_model = CpuModel();
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) info.cores = CPU_COUNT(&set);
  info.memory_bytes = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  utsname name{};
  if (uname(&name) == 0) info.kernel = absl::StrCat(name.sysname, " ", name.release);
  return info;
}

std::string DateNow() {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone());
}

}  // namespace attnd::loadtest
