#include "server/cuda_memory.h"

#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"

namespace attnd {
namespace {

constexpr std::chrono::microseconds kSpinTime{300};

absl::Status AllocationStatus(cudaError_t error, const char* kind, std::int64_t bytes) {
  if (error != cudaErrorMemoryAllocation) return CudaStatus(error, kind);
  cudaGetLastError();  // a refused allocation is not sticky
  return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", bytes, " bytes of ", kind));
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(what, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error)));
}

absl::StatusOr<DeviceMemory> AllocateDevice(std::int64_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, static_cast<std::size_t>(bytes));
  if (error != cudaSuccess) return AllocationStatus(error, "device memory", bytes);
  return DeviceMemory(static_cast<std::byte*>(memory));
}

absl::StatusOr<PinnedMemory> AllocatePinned(std::int64_t bytes) {
  void* memory = nullptr;
  const cudaError_t error =
      cudaHostAlloc(&memory, static_cast<std::size_t>(bytes), cudaHostAllocDefault);
  if (error != cudaSuccess) return AllocationStatus(error, "pinned host memory", bytes);
  return PinnedMemory(static_cast<std::byte*>(memory));
}

absl::StatusOr<StreamOwner> MakeStream() {
  cudaStream_t stream = nullptr;
  const cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (error != cudaSuccess) return CudaStatus(error, "creating a stream");
  return StreamOwner(stream);
}

absl::StatusOr<EventOwner> MakeEvent(bool timing) {
  cudaEvent_t event = nullptr;
  const unsigned flags =
      cudaEventBlockingSync | (timing ? 0U : static_cast<unsigned>(cudaEventDisableTiming));
  const cudaError_t error = cudaEventCreateWithFlags(&event, flags);
  if (error != cudaSuccess) return CudaStatus(error, "creating an event");
  return EventOwner(event);
}

double SecondsBetween(cudaEvent_t begin, cudaEvent_t end) {
  float milliseconds = 0;
  if (cudaEventElapsedTime(&milliseconds, begin, end) != cudaSuccess) return 0;
  return milliseconds * 1e-3;
}

absl::Status AwaitEvent(cudaEvent_t event) {
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < kSpinTime) {
    const cudaError_t state = cudaEventQuery(event);
    if (state != cudaErrorNotReady) return CudaStatus(state, "waiting for the device");
    std::this_thread::yield();
  }
  return CudaStatus(cudaEventSynchronize(event), "waiting for the device");
}

}  // namespace attnd
