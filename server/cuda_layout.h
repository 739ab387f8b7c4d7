// Where the tensors of a launch lie in a piece of device memory, the arena, and what is copied in
// and out of it. Pure host code: the arena's address is computed with, never read.
//
//   [ inputs, ascending ][ working memory of the attention kernel ][ outputs ]
//
// Work is cut into spans: rows of one batch item. A whole batch is one span an item; a batch that
// does not fit into the arena is served in several launches of fewer items or fewer rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention_kernels.h"
#include "kernels/cuda_kernels.h"
#include "server/batch.h"

namespace attnd {

// Rows [first_row, first_row + rows) of an item's queries and, where it appends, of its new tokens.
struct ItemSpan {
  std::int32_t item = 0;
  std::int32_t first_row = 0, rows = 0;
};

// One span an item, in order.
std::vector<ItemSpan> WholeItems(const Batch& batch);
// Halves the work, for two launches one after the other: the items, or the rows of a single one.
// False where `spans` is one row.
bool HalveSpans(std::span<const ItemSpan> spans, std::vector<ItemSpan>& first,
                std::vector<ItemSpan>& second);

// Bytes from a request's tensor, or from host memory that lives until the copy has been made.
struct ArenaInput {
  std::int64_t offset = 0, size_bytes = 0;
  TensorSlice slice;  // tensor null: `host` is copied
  const std::byte* host = nullptr;
};
struct ArenaOutput {
  std::int64_t offset = 0, size_bytes = 0;
  std::byte* to = nullptr;
};
struct CudaLayout {
  // Of all vectors the backend keeps the capacity from launch to launch.
  std::vector<ArenaInput> inputs;    // ascending offsets
  std::vector<ArenaOutput> outputs;  // ascending offsets
  // Pointers are device addresses.
  std::vector<kernels::AttentionSequence> sequences;
  std::vector<kernels::AppendSequence> appends;
  std::vector<kernels::QueryRotation> rotations;
  std::int64_t inputs_end = 0;
  std::int64_t outputs_begin = 0, outputs_end = 0;  // outputs_end: of the arena

  // Appends `size_bytes` of host memory to the inputs; their offset, a multiple of kAlignment.
  std::int64_t AddInput(const void* host, std::int64_t size_bytes);
  static constexpr std::int64_t kAlignment = 256;
};

// Lays out `spans` of `batch`. False where inputs and outputs alone do not fit; the layout is then
// of no use.
bool LayOut(const Batch& batch, std::span<const ItemSpan> spans, std::byte* arena,
            std::int64_t arena_bytes, CudaLayout& layout);

}  // namespace attnd
