// Writes new rows of K and V into the pages of a cache, rotated where asked, padded with zeros to
// the row length of the pages (kernels read whole rows).
#include <algorithm>
#include <cstring>

#include "kernels/attention_kernels.h"
#include "kernels/cpu/cpu_executor.h"
#include "kernels/cpu/rope.h"
#include "kernels/page_check.h"

namespace attnd::kernels {
namespace {

constexpr int kChunkTokens = 32;  // tokens of one work item

void AppendTokens(const AppendParams& params, const AppendSequence& sequence, std::int64_t begin,
                  std::int64_t end) {
  const PageLayout& layout = params.page_layout;
  const std::int64_t element = ElementBytes(layout.data_type);
  const std::int64_t row_bytes = layout.head_dim * element;
  const std::int64_t padded_bytes = layout.padded_head_dim * element;
  const std::int64_t token_bytes = layout.num_kv_heads * row_bytes;
  RopeAngles angles;
  for (std::int64_t token = begin; token < end; ++token) {
    const std::int64_t slot = sequence.first_token + token;
    std::byte* page =
        params.pool + std::int64_t{sequence.page_table[slot / layout.page_tokens]} * kPageUnitBytes;
    std::byte* k_row = page + slot % layout.page_tokens * padded_bytes;
    std::byte* v_row = k_row + layout.v_offset_bytes();
    const auto* k = static_cast<const std::byte*>(sequence.k) + token * token_bytes;
    const auto* v = static_cast<const std::byte*>(sequence.v) + token * token_bytes;
    if (sequence.rope.enabled) {
      ComputeRopeAngles(sequence.rope, sequence.first_position + token, angles);
    }
    for (int head = 0; head < layout.num_kv_heads; ++head) {
      if (sequence.rope.enabled) {
        RotateRow(sequence.rope, angles, layout.data_type, layout.head_dim, k, k_row);
      } else {
        std::memcpy(k_row, k, row_bytes);
      }
      std::memcpy(v_row, v, row_bytes);
      std::memset(k_row + row_bytes, 0, padded_bytes - row_bytes);
      std::memset(v_row + row_bytes, 0, padded_bytes - row_bytes);
      k += row_bytes;
      v += row_bytes;
      k_row += layout.head_block_bytes();
      v_row += layout.head_block_bytes();
    }
  }
}

bool PagesValid(const AppendParams& params) {
  const std::int64_t page_tokens = params.page_layout.page_tokens;
  for (int i = 0; i < params.num_sequences; ++i) {
    const AppendSequence& sequence = params.sequences[i];
    if (sequence.num_tokens <= 0) continue;
    const std::int64_t first = sequence.first_token / page_tokens;
    const std::int64_t last = (sequence.first_token + sequence.num_tokens - 1) / page_tokens;
    if (!PagesInsidePool(params.page_layout, params.pool_bytes, sequence.page_table, first,
                         last - first + 1)) {
      return false;
    }
  }
  return true;
}

}  // namespace

LaunchResult LaunchAppend(const AppendParams& params, CpuExecutor& executor) {
  if (!PagesValid(params)) return {LaunchStatus::kPageOutOfPool, 0};
  std::int64_t total_tokens = 0;
  for (int i = 0; i < params.num_sequences; ++i) total_tokens += params.sequences[i].num_tokens;
  if (total_tokens <= kChunkTokens) {  // a decode step: waking a thread would cost more
    for (int i = 0; i < params.num_sequences; ++i) {
      AppendTokens(params, params.sequences[i], 0, params.sequences[i].num_tokens);
    }
    return {};
  }
  if (params.num_sequences > 1) {
    ParallelFor(executor, params.num_sequences, [&](std::int64_t i) {
      AppendTokens(params, params.sequences[i], 0, params.sequences[i].num_tokens);
    });
    return {};
  }
  const AppendSequence& sequence = params.sequences[0];
  const std::int64_t chunks = (sequence.num_tokens + kChunkTokens - 1) / kChunkTokens;
  ParallelFor(executor, chunks, [&](std::int64_t chunk) {
    const std::int64_t begin = chunk * kChunkTokens;
    AppendTokens(params, sequence, begin,
                 std::min<std::int64_t>(begin + kChunkTokens, sequence.num_tokens));
  });
  return {};
}

}  // namespace attnd::kernels
