// How a GPU's memory is shared out: the cache's pool, one arena for each batch in flight (its
// tensors and the working memory of its kernels), and what CUDA itself needs. Pure.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "server/machine_resources.h"
#include "server/server_config.h"

namespace attnd {

// ResolveDefaults, with cache_bytes and workspace_bytes from what the GPU has free. An error names
// the flag whose value does not fit.
absl::StatusOr<ServerConfig> ResolveCudaDefaults(ServerConfig config,
                                                 const MachineResources& machine,
                                                 std::int64_t free_bytes);

// Device memory of one batch in flight under a resolved configuration: workspace_bytes, and the
// largest message in both directions.
std::int64_t ArenaBytes(const ServerConfig& config);

}  // namespace attnd
