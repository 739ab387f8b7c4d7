#include "server/cuda_staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace attnd {
namespace {

// A gap in the arena that is cheaper to copy along than to start another copy for.
constexpr std::int64_t kCopiedGapBytes = 4096;

}  // namespace

absl::StatusOr<CudaUpload> CudaUpload::Create(int chunks, std::int64_t chunk_bytes) {
  CudaUpload upload;
  auto memory = AllocatePinned(chunks * chunk_bytes);
  if (!memory.ok()) return memory.status();
  upload.memory_ = *std::move(memory);
  upload.chunk_bytes_ = chunk_bytes;
  for (int i = 0; i < chunks; ++i) {
    auto taken = MakeEvent(/*timing=*/false);
    if (!taken.ok()) return taken.status();
    upload.chunks_.push_back({upload.memory_.get() + i * chunk_bytes, *std::move(taken)});
  }
  return upload;
}

absl::Status CudaUpload::Copy(std::span<const ArenaInput> inputs, std::byte* arena,
                              cudaStream_t stream) {
  arena_ = arena;
  stream_ = stream;
  open_ = false;
  absl::Status status;
  for (const ArenaInput& input : inputs) {
    const std::int64_t place = input.offset - chunk_begin_;
    if (open_ && (place > filled_ + kCopiedGapBytes || place >= chunk_bytes_)) status = Flush();
    if (open_) {
      filled_ = place;
    } else {
      chunk_begin_ = input.offset;
    }
    if (input.slice.tensor == nullptr) {
      if (status.ok()) status = Write(input.host, input.size_bytes);
      continue;
    }
    std::int64_t skip = input.slice.offset_bytes;
    std::int64_t left = input.size_bytes;
    for (const ByteRange& piece : input.slice.tensor->pieces) {
      const auto size = static_cast<std::int64_t>(piece.size);
      if (skip >= size) {
        skip -= size;
        continue;
      }
      const std::int64_t count = std::min(left, size - skip);
      if (status.ok()) status = Write(piece.data + skip, count);
      skip = 0;
      left -= count;
      if (left == 0) break;
    }
  }
  if (status.ok() && open_) status = Flush();
  return status;
}

absl::Status CudaUpload::Write(const std::byte* from, std::int64_t bytes) {
  while (bytes > 0) {
    if (open_ && filled_ == chunk_bytes_) {
      if (absl::Status status = Flush(); !status.ok()) return status;
      chunk_begin_ += chunk_bytes_;
    }
    if (!open_) {
      if (absl::Status status = Open(); !status.ok()) return status;
    }
    const std::int64_t count = std::min(bytes, chunk_bytes_ - filled_);
    std::memcpy(chunks_[current_].data + filled_, from, static_cast<std::size_t>(count));
    filled_ += count;
    from += count;
    bytes -= count;
  }
  return absl::OkStatus();
}

absl::Status CudaUpload::Open() {
  current_ = (current_ + 1) % chunks_.size();
  open_ = true;
  filled_ = 0;
  return AwaitEvent(chunks_[current_].taken.get());
}

absl::Status CudaUpload::Flush() {
  Chunk& chunk = chunks_[current_];
  open_ = false;
  cudaError_t error =
      cudaMemcpyAsync(arena_ + chunk_begin_, chunk.data, static_cast<std::size_t>(filled_),
                      cudaMemcpyHostToDevice, stream_);
  if (error == cudaSuccess) error = cudaEventRecord(chunk.taken.get(), stream_);
  return CudaStatus(error, "copying to the device");
}

absl::StatusOr<CudaReadback> CudaReadback::Create(std::int64_t chunk_bytes) {
  CudaReadback readback;
  auto memory = AllocatePinned(kChunks * chunk_bytes);
  if (!memory.ok()) return memory.status();
  readback.memory_ = *std::move(memory);
  readback.chunk_bytes_ = chunk_bytes;
  for (EventOwner& arrived : readback.arrived_) {
    auto event = MakeEvent(/*timing=*/false);
    if (!event.ok()) return event.status();
    arrived = *std::move(event);
  }
  return readback;
}

absl::Status CudaReadback::Begin(std::span<const ArenaOutput> outputs, const std::byte* arena,
                                 std::int64_t begin, std::int64_t end, cudaStream_t stream) {
  outputs_ = outputs;
  next_output_ = 0;
  arena_ = arena;
  begin_ = begin;
  end_ = end;
  stream_ = stream;
  for (std::int64_t chunk = 0; chunk < kChunks; ++chunk) {
    if (absl::Status status = Start(chunk); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CudaReadback::Start(std::int64_t chunk) {
  const std::int64_t first = begin_ + chunk * chunk_bytes_;
  if (first >= end_) return absl::OkStatus();
  const std::int64_t bytes = std::min(chunk_bytes_, end_ - first);
  cudaError_t error =
      cudaMemcpyAsync(memory_.get() + chunk % kChunks * chunk_bytes_, arena_ + first,
                      static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, stream_);
  if (error == cudaSuccess) error = cudaEventRecord(arrived_[chunk % kChunks].get(), stream_);
  return CudaStatus(error, "copying from the device");
}

absl::Status CudaReadback::Finish() {
  for (std::int64_t chunk = 0; begin_ + chunk * chunk_bytes_ < end_; ++chunk) {
    if (absl::Status status = AwaitEvent(arrived_[chunk % kChunks].get()); !status.ok()) {
      return status;
    }
    Scatter(chunk);
    if (absl::Status status = Start(chunk + kChunks); !status.ok()) return status;
  }
  return absl::OkStatus();
}

void CudaReadback::Scatter(std::int64_t chunk) {
  const std::int64_t first = begin_ + chunk * chunk_bytes_;
  const std::int64_t last = std::min(first + chunk_bytes_, end_);
  const std::byte* data = memory_.get() + chunk % kChunks * chunk_bytes_;
  while (next_output_ < outputs_.size()) {
    const ArenaOutput& output = outputs_[next_output_];
    const std::int64_t begin = std::max(output.offset, first);
    const std::int64_t end = std::min(output.offset + output.size_bytes, last);
    if (begin < end) {
      std::memcpy(output.to + (begin - output.offset), data + (begin - first),
                  static_cast<std::size_t>(end - begin));
    }
    if (output.offset + output.size_bytes > last) return;
    ++next_output_;
  }
}

}  // namespace attnd
