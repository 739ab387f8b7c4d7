#include "kernels/cpu/prefill.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <vector>

#include "kernels/cpu/cpu_executor.h"
#include "kernels/cpu/exact.h"
#include "kernels/cpu/prefill_block.h"
#include "kernels/key_range.h"

namespace attnd::kernels {
namespace {

// Rows of a block's visible-key array; follows the target's scratch.
constexpr int kMaxTileRows = 64;
constexpr int kMaxBlockRows = kMaxBlockTiles * kMaxTileRows;
constexpr std::int64_t kRangeBytes = kMaxBlockRows * static_cast<std::int64_t>(sizeof(KeyRange));
static_assert(kRangeBytes % 128 == 0);

// Blocks a thread should find, so that the last ones to end differ little.
constexpr std::int64_t kBlocksPerThread = 8;

struct BlockOfRows {
  std::int32_t sequence;
  std::int32_t num_rows;
  std::int64_t row_begin;
  std::int64_t pairs;  // score entries of one head: the block's cost
};

std::int64_t ThreadBytes(const PrefillTarget& target, int head_dim) {
  return target.scratch_bytes(head_dim) + kRangeBytes;
}

// Tiles of one block: as many as kMaxBlockTiles, to pack each key once for all of them, but few
// enough for every thread to find kBlocksPerThread blocks.
std::int64_t RowsPerBlock(const AttentionParams& params, const PrefillTarget& target,
                          int num_threads) {
  const std::int64_t group = params.num_heads / params.num_kv_heads;
  std::int64_t tiles = 0;
  for (int i = 0; i < params.num_sequences; ++i) {
    tiles += (params.sequences[i].query_length * group + target.tile_rows - 1) / target.tile_rows *
             params.num_kv_heads;
  }
  const std::int64_t wanted = tiles / (kBlocksPerThread * num_threads);
  return std::clamp<std::int64_t>(wanted, 1, kMaxBlockTiles) * target.tile_rows;
}

// The longest blocks first: the short ones fill the gaps at the end.
std::vector<BlockOfRows> CutBlocks(const AttentionParams& params, std::int64_t rows_per_block) {
  const std::int64_t group = params.num_heads / params.num_kv_heads;
  std::vector<BlockOfRows> blocks;
  for (int i = 0; i < params.num_sequences; ++i) {
    const AttentionSequence& sequence = params.sequences[i];
    const std::int64_t rows = sequence.query_length * group;
    for (std::int64_t begin = 0; begin < rows; begin += rows_per_block) {
      const std::int64_t end = std::min(begin + rows_per_block, rows);
      const KeyRange keys = VisibleKeys(sequence, begin / group, (end - 1) / group + 1);
      blocks.push_back(
          {i, static_cast<std::int32_t>(end - begin), begin, (end - begin) * keys.size()});
    }
  }
  std::stable_sort(blocks.begin(), blocks.end(),
                   [](const BlockOfRows& a, const BlockOfRows& b) { return a.pairs > b.pairs; });
  return blocks;
}

KvAddress Address(const AttentionParams& params, const AttentionSequence& sequence, int kv_head) {
  const std::int64_t element = ElementBytes(params.kv_data_type);
  KvAddress address;
  if (sequence.kv.page_table != nullptr) {
    const PageLayout& layout = params.page_layout;
    address.k = params.pool + kv_head * layout.head_block_bytes();
    address.v = address.k + layout.v_offset_bytes();
    address.k_stride_bytes = address.v_stride_bytes = layout.padded_head_dim * element;
    address.page_table = sequence.kv.page_table;
    address.page_shift = std::countr_zero(static_cast<std::uint32_t>(layout.page_tokens));
    return address;
  }
  const KvView& kv = sequence.kv;
  if (kv.k == nullptr) return address;  // no keys: no address is ever asked for
  address.k = static_cast<const std::byte*>(kv.k) + kv_head * kv.k_head_stride * element;
  address.v = static_cast<const std::byte*>(kv.v) + kv_head * kv.v_head_stride * element;
  address.k_stride_bytes = kv.k_token_stride * element;
  address.v_stride_bytes = kv.v_token_stride * element;
  return address;
}

// Computes the rows of one tile again, head by head, on the exact row. Returns the heads.
std::int64_t RerunTile(const AttentionParams& params, const BlockOfRows& block, int kv_head,
                       std::int64_t row_begin, std::int64_t row_end) {
  const int group = params.num_heads / params.num_kv_heads;
  std::int64_t heads = 0;
  for (int member = 0; member < group; ++member) {
    // Rows r with r % group == member.
    const std::int64_t begin = (row_begin - member + group - 1) / group;
    const std::int64_t end = (row_end - member + group - 1) / group;
    if (begin >= end) continue;
    ExactRows(params, block.sequence, kv_head * group + member, static_cast<int>(begin),
              static_cast<int>(end));
    ++heads;
  }
  return heads;
}

// Runs one block for one KV head; returns the (tile, head) pairs that were computed again.
std::int64_t RunBlock(const AttentionParams& params, const PrefillTarget& target,
                      const BlockOfRows& rows, int kv_head, std::byte* scratch) {
  const AttentionSequence& sequence = params.sequences[rows.sequence];
  const std::int64_t group = params.num_heads / params.num_kv_heads;
  auto* visible = reinterpret_cast<KeyRange*>(scratch + target.scratch_bytes(params.head_dim));
  for (int row = 0; row < rows.num_rows; ++row) {
    visible[row] = VisibleKeys(sequence, (rows.row_begin + row) / group);
  }
  PrefillBlock block;
  block.sequence = &sequence;
  block.kv_head = kv_head;
  block.row_begin = rows.row_begin;
  block.num_rows = rows.num_rows;
  block.kv = Address(params, sequence, kv_head);
  block.visible = visible;
  const std::uint32_t not_finite = target.run_block(params, block, scratch);
  std::int64_t reruns = 0;
  for (int tile = 0; not_finite >> tile != 0; ++tile) {
    if (((not_finite >> tile) & 1U) == 0) continue;
    const std::int64_t begin = rows.row_begin + std::int64_t{tile} * target.tile_rows;
    const std::int64_t end = std::min(begin + target.tile_rows, rows.row_begin + rows.num_rows);
    reruns += RerunTile(params, rows, kv_head, begin, end);
  }
  return reruns;
}

LaunchResult LaunchPrefill(const AttentionParams& params, const PrefillTarget& target,
                           std::byte* workspace, CpuExecutor& executor) {
  LaunchResult result;
  if (params.data_type != params.kv_data_type ||
      (target.data_types & TypeBit(params.data_type)) == 0 || params.head_dim < 1 ||
      params.head_dim > kMaxHeadDim) {
    result.status = LaunchStatus::kUnsupported;
    return result;
  }
  const std::vector<BlockOfRows> blocks =
      CutBlocks(params, RowsPerBlock(params, target, executor.num_threads()));
  const std::int64_t thread_bytes = ThreadBytes(target, params.head_dim);
  std::atomic<std::int64_t> reruns{0};
  ParallelFor(executor, static_cast<std::int64_t>(blocks.size()) * params.num_kv_heads,
              [&](std::int64_t item, int worker) {
                const auto kv_head = static_cast<int>(item % params.num_kv_heads);
                const std::int64_t again =
                    RunBlock(params, target, blocks[item / params.num_kv_heads], kv_head,
                             workspace + worker * thread_bytes);
                if (again != 0) reruns.fetch_add(again, std::memory_order_relaxed);
              });
  result.exact_reruns = reruns.load();
  return result;
}

const PrefillTarget& TargetOf(CpuTarget target) {
  if (target == CpuTarget::kAvx512Bf16) return kPrefillAvx512Bf16;
  return target == CpuTarget::kAvx512 ? kPrefillAvx512 : kPrefillAvx2;
}

}  // namespace

std::int64_t PrefillWorkspaceBytes(const AttentionParams& params, CpuTarget target,
                                   int num_threads) {
  return ThreadBytes(TargetOf(target), params.head_dim) * num_threads;
}

LaunchResult LaunchPrefillAvx2(const AttentionParams& params, const LaunchPlan& /*plan*/,
                               std::byte* workspace, CpuExecutor& executor) {
  return LaunchPrefill(params, kPrefillAvx2, workspace, executor);
}

LaunchResult LaunchPrefillAvx512(const AttentionParams& params, const LaunchPlan& /*plan*/,
                                 std::byte* workspace, CpuExecutor& executor) {
  return LaunchPrefill(params, kPrefillAvx512, workspace, executor);
}

LaunchResult LaunchPrefillAvx512Bf16(const AttentionParams& params, const LaunchPlan& /*plan*/,
                                     std::byte* workspace, CpuExecutor& executor) {
  return LaunchPrefill(params, kPrefillAvx512Bf16, workspace, executor);
}

}  // namespace attnd::kernels
