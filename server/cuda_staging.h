// Copies in and out of device memory through pinned host memory, in chunks: while the device takes
// one chunk, the CPU fills or empties the next.
//
// Not thread-safe. CudaUpload is the packing thread's, one CudaReadback belongs to each batch in
// flight.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/cuda_layout.h"
#include "server/cuda_memory.h"

namespace attnd {

class CudaUpload {
 public:
  // `chunks` x `chunk_bytes` of pinned memory.
  static absl::StatusOr<CudaUpload> Create(int chunks, std::int64_t chunk_bytes);

  // Copies `inputs` (ascending offsets) into `arena`, in order on `stream`. Returns when the host
  // memory has been read, long before the device has all of it.
  absl::Status Copy(std::span<const ArenaInput> inputs, std::byte* arena, cudaStream_t stream);

 private:
  struct Chunk {
    std::byte* data = nullptr;
    EventOwner taken;  // recorded behind its copy
  };
  absl::Status Write(const std::byte* from, std::int64_t bytes);
  absl::Status Open();  // the next chunk, once the device has taken it
  absl::Status Flush();

  PinnedMemory memory_;
  std::vector<Chunk> chunks_;
  std::int64_t chunk_bytes_ = 0;
  std::size_t current_ = 0;

  // Of the Copy under way.
  std::byte* arena_ = nullptr;
  cudaStream_t stream_ = nullptr;
  bool open_ = false;
  std::int64_t chunk_begin_ = 0;  // arena offset of the open chunk's first byte
  std::int64_t filled_ = 0;
};

class CudaReadback {
 public:
  static absl::StatusOr<CudaReadback> Create(std::int64_t chunk_bytes);

  // Starts copying the outputs on `stream`. `outputs` lives until Finish has returned.
  absl::Status Begin(std::span<const ArenaOutput> outputs, const std::byte* arena,
                     std::int64_t begin, std::int64_t end, cudaStream_t stream);
  // Waits and fills the outputs' host memory.
  absl::Status Finish();

 private:
  static constexpr int kChunks = 2;
  absl::Status Start(std::int64_t chunk);
  void Scatter(std::int64_t chunk);

  PinnedMemory memory_;
  std::array<EventOwner, kChunks> arrived_;
  std::int64_t chunk_bytes_ = 0;

  std::span<const ArenaOutput> outputs_;
  std::size_t next_output_ = 0;  // the first one that is not complete
  const std::byte* arena_ = nullptr;
  std::int64_t begin_ = 0, end_ = 0;
  cudaStream_t stream_ = nullptr;
};

}  // namespace attnd
