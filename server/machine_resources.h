// What this process may use of the machine, container limits included, and the configuration values
// that follow from it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "server/server_config.h"

namespace attnd {

struct MachineResources {
  std::int64_t memory_bytes = 0;  // the smallest of the machine's and every enclosing cgroup's
  int cores = 1;                  // the smaller of the affinity mask and the cgroup CPU quota, >= 1
  std::int64_t max_open_files = 1024;  // descriptors that this process may have (ulimit -n)
};

// `affinity_cores`: cores in this process's affinity mask. Asks for the limit of open files, and
// reads /proc and /sys/fs/cgroup (version 1 or 2) below `root`, which tests replace; limits that
// cannot be read do not bind.
MachineResources ReadMachineResources(int affinity_cores, const std::string& root = "");
// With the real affinity mask and root.
MachineResources ReadMachineResources();

// Pure: fills threads, cache_bytes, workspace_bytes and max_connections where they are 0. An error
// where an explicit value exceeds what there is: better refused at start than killed under load.
absl::StatusOr<ServerConfig> ResolveDefaults(ServerConfig config,
                                             const MachineResources& resources);

}  // namespace attnd
