// What the CUDA runtime tells about this machine, and the backend on one of its GPUs. A build
// without CUDA has the same functions: they find nothing (no_cuda_device.cc).
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "server/attention_backend.h"
#include "server/device_selection.h"
#include "server/metrics.h"
#include "server/server_config.h"

namespace attnd {

// Loads the driver's library if there is one. Creates no context.
CudaFacts ReadCudaFacts();

// Memory that the GPU has free; makes the context of the GPU, which takes some of it.
absl::StatusOr<std::int64_t> FreeDeviceMemory(int index);

// `config` with cache_bytes and workspace_bytes resolved (cuda_memory_budget.h).
absl::StatusOr<std::unique_ptr<AttentionBackend>> MakeCudaBackend(const ServerConfig& config,
                                                                  const DeviceChoice& choice,
                                                                  Metrics& metrics);

}  // namespace attnd
