#include "server/cpu_staging.h"

#include <algorithm>
#include <cstring>

namespace attnd {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kSmallestBlock = std::int64_t{1} << 20;

// Null where the slice spans pieces or is not aligned.
const std::byte* InPlace(const TensorSlice& slice, int element_bytes) {
  std::int64_t offset = slice.offset_bytes;
  for (const ByteRange& piece : slice.tensor->pieces) {
    const auto size = static_cast<std::int64_t>(piece.size);
    if (offset < size) {
      if (offset + slice.size_bytes > size) return nullptr;
      const std::byte* data = piece.data + offset;
      const bool aligned =
          reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(element_bytes) == 0;
      return aligned ? data : nullptr;
    }
    offset -= size;
  }
  return nullptr;
}

void CopyOut(const TensorSlice& slice, std::byte* to) {
  std::int64_t offset = slice.offset_bytes;
  std::int64_t left = slice.size_bytes;
  for (const ByteRange& piece : slice.tensor->pieces) {
    if (left == 0) return;
    const auto size = static_cast<std::int64_t>(piece.size);
    if (offset >= size) {
      offset -= size;
      continue;
    }
    const std::int64_t count = std::min(left, size - offset);
    std::memcpy(to, piece.data + offset, static_cast<std::size_t>(count));
    to += count;
    left -= count;
    offset = 0;
  }
}

}  // namespace

std::byte* CpuStaging::Take(std::int64_t bytes) {
  const std::int64_t wanted = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (blocks_.empty() || blocks_.back().size - blocks_.back().used < wanted) {
    const std::int64_t size = std::max(wanted, kSmallestBlock);
    blocks_.push_back({AllocateOutput(size).data, size, 0});
  }
  Block& block = blocks_.back();
  std::byte* data = block.data.get() + block.used;
  block.used += wanted;
  return data;
}

const std::byte* CpuStaging::Resolve(const TensorSlice& slice, int element_bytes) {
  if (slice.tensor == nullptr || slice.size_bytes == 0) return nullptr;
  const std::byte* data = InPlace(slice, element_bytes);
  return data != nullptr ? data : Copy(slice);
}

const std::byte* CpuStaging::Resolve(const TensorSlice& slice, int element_bytes,
                                     StagedTensors::Tensor& staged) {
  if (slice.tensor == nullptr || slice.size_bytes == 0) return nullptr;
  if (staged.data == nullptr) {
    staged.data = InPlace(slice, element_bytes);
    if (staged.data == nullptr) {
      std::shared_ptr<std::byte[]> copy = AllocateOutput(slice.size_bytes).data;
      CopyOut(slice, copy.get());
      staged.data = copy.get();
      staged.memory = std::move(copy);
    }
  }
  return staged.data;
}

std::byte* CpuStaging::Copy(const TensorSlice& slice) {
  std::byte* data = Take(slice.size_bytes);
  CopyOut(slice, data);
  return data;
}

void CpuStaging::Clear() {
  // One block that fits everything is better than many: the largest that may be kept stays.
  Block kept;
  for (Block& block : blocks_) {
    if (block.size > kept.size && block.size <= kKeptBytes) kept = std::move(block);
  }
  blocks_.clear();
  if (kept.data) {
    kept.used = 0;
    blocks_.push_back(std::move(kept));
  }
}

}  // namespace attnd
