// Turns slices of request tensors into memory that a CPU kernel can read: in place where the bytes
// lie in one piece on an element boundary, else copied once.
//
// Not thread-safe: the backend thread's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "server/batch.h"

namespace attnd {

class CpuStaging {
 public:
  // `element_bytes`: what the data must be aligned to. The result is valid until Clear, and while
  // the request lives.
  const std::byte* Resolve(const TensorSlice& slice, int element_bytes);
  // The same, but a copy is kept in `staged` for later launches.
  static const std::byte* Resolve(const TensorSlice& slice, int element_bytes,
                                  StagedTensors::Tensor& staged);
  // Always a copy, for data that is changed.
  std::byte* Copy(const TensorSlice& slice);

  // Forgets all copies; keeps up to kKeptBytes of memory for the next launch.
  void Clear();

 private:
  static constexpr std::int64_t kKeptBytes = std::int64_t{64} << 20;
  struct Block {
    std::shared_ptr<std::byte[]> data;
    std::int64_t size = 0, used = 0;
  };
  std::byte* Take(std::int64_t bytes);
  std::vector<Block> blocks_;  // the last one is being filled
};

}  // namespace attnd
