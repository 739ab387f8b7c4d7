// Stands in for cuda_device.cc in builds without CUDA.
#include "server/cuda_device.h"

namespace attnd {

CudaFacts ReadCudaFacts() { return {}; }

absl::StatusOr<std::int64_t> FreeDeviceMemory(int) {
  return absl::UnimplementedError("built without CUDA");
}

absl::StatusOr<std::unique_ptr<AttentionBackend>> MakeCudaBackend(const ServerConfig&,
                                                                  const DeviceChoice&, Metrics&) {
  return absl::UnimplementedError("built without CUDA");
}

}  // namespace attnd
