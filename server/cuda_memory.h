// Ownership of CUDA memory, streams and events, and CUDA errors as absl::Status.
//
// Move-only values; each belongs to the device that was current when it was made. Freeing ignores
// errors: after a device fault every call fails, and the process is about to end.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace attnd {

// OK, or INTERNAL "<what>: <CUDA's name and text of the error>".
absl::Status CudaStatus(cudaError_t error, const char* what);

struct DeviceMemoryDeleter {
  void operator()(std::byte* memory) const { cudaFree(memory); }
};
struct PinnedMemoryDeleter {
  void operator()(std::byte* memory) const { cudaFreeHost(memory); }
};
struct StreamDeleter {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
struct EventDeleter {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};

using DeviceMemory = std::unique_ptr<std::byte, DeviceMemoryDeleter>;
using PinnedMemory = std::unique_ptr<std::byte, PinnedMemoryDeleter>;
using StreamOwner = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, StreamDeleter>;
using EventOwner = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, EventDeleter>;

// RESOURCE_EXHAUSTED where the device, or the host's pinned memory, has not so much left.
absl::StatusOr<DeviceMemory> AllocateDevice(std::int64_t bytes);
absl::StatusOr<PinnedMemory> AllocatePinned(std::int64_t bytes);
// Does not wait for the default stream.
absl::StatusOr<StreamOwner> MakeStream();
// timing: usable with Seconds. Untimed ones are cheaper to record.
absl::StatusOr<EventOwner> MakeEvent(bool timing);

// Seconds from one recorded, completed event to the next; 0 where that cannot be told.
double SecondsBetween(cudaEvent_t begin, cudaEvent_t end);

// Waits for an event: spins for as long as a decode step takes, since a sleeping thread wakes up
// tens of microseconds late, then sleeps, so that a long prefill costs no core.
absl::Status AwaitEvent(cudaEvent_t event);

}  // namespace attnd
