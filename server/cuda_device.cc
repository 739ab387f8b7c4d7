#include "server/cuda_device.h"

#include <cuda_runtime_api.h>

#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_format.h"
#include "server/cuda_backend.h"
#include "server/cuda_memory.h"
#include "server/cuda_memory_budget.h"
#include "server/device_report.h"

namespace attnd {
namespace {

constexpr int kBatchesInFlight = 2;

// As NVML and nvidia-smi write it.
std::string UuidText(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += absl::StrFormat("%02x", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

int Attribute(cudaDeviceAttr attribute, int index) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, attribute, index) == cudaSuccess ? value : 0;
}

// Double data rate; the clock is told in kHz, the width in bits.
double MemoryBandwidth(int index) {
  return 2.0 * 1e3 * Attribute(cudaDevAttrMemoryClockRate, index) *
         Attribute(cudaDevAttrGlobalMemoryBusWidth, index) / 8;
}

}  // namespace

CudaFacts ReadCudaFacts() {
  CudaFacts facts;
  facts.built = true;
  facts.needed_version = CUDART_VERSION / 1000 * 1000;  // minor versions are compatible
  if (cudaDriverGetVersion(&facts.supported_version) != cudaSuccess) facts.supported_version = 0;
  if (facts.supported_version == 0) return facts;
  std::ifstream file("/proc/driver/nvidia/version");
  facts.driver_version = ParseDriverVersion({std::istreambuf_iterator<char>(file), {}});
  if (facts.supported_version < facts.needed_version) return facts;
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess && error != cudaErrorNoDevice) facts.fault = cudaGetErrorString(error);
  for (int i = 0; error == cudaSuccess && i < count; ++i) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    GpuFacts& gpu = facts.gpus.emplace_back();
    gpu.index = i;
    gpu.name = properties.name;
    gpu.uuid = UuidText(properties.uuid);
    gpu.compute_capability = properties.major * 10 + properties.minor;
    gpu.multiprocessors = properties.multiProcessorCount;
    gpu.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
    gpu.memory_bytes_per_second = MemoryBandwidth(i);
  }
  return facts;
}

absl::StatusOr<std::int64_t> FreeDeviceMemory(int index) {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  cudaError_t error = cudaSetDevice(index);
  if (error == cudaSuccess) error = cudaMemGetInfo(&free_bytes, &total_bytes);
  if (error != cudaSuccess) return CudaStatus(error, "reading the GPU's free memory");
  return static_cast<std::int64_t>(free_bytes);
}

absl::StatusOr<std::unique_ptr<AttentionBackend>> MakeCudaBackend(const ServerConfig& config,
                                                                  const DeviceChoice& choice,
                                                                  Metrics& metrics) {
  CudaBackend::Options options;
  options.device_index = choice.gpu.index;
  options.arena_bytes = ArenaBytes(config);
  BackendLimits& limits = options.limits;
  limits.device.kind = kernels::DeviceKind::kCuda;
  limits.device.compute_capability = choice.row_capability;
  limits.device.num_threads = choice.gpu.multiprocessors;
  limits.device_name = choice.device_name;
  limits.description = choice.gpu.name;
  limits.uuid = choice.gpu.uuid;
  limits.kernel_arch = choice.kernel_arch;
  limits.memory_bytes = static_cast<std::uint64_t>(choice.gpu.memory_bytes);
  limits.datasheet_bytes_per_second = choice.gpu.memory_bytes_per_second;
  limits.workspace_bytes = config.workspace_bytes;
  limits.max_batches_in_flight = kBatchesInFlight;
  limits.pool_bytes = config.cache_bytes;
  limits.host_pool_bytes = config.host_cache_bytes;
  auto backend = CudaBackend::Create(options, metrics);
  if (!backend.ok()) return backend.status();
  return std::unique_ptr<AttentionBackend>(*std::move(backend));
}

}  // namespace attnd
