// What every CUDA kernel is launched with. Plain structs shared by host and device; all pointers
// are device pointers, owned by whoever launches and alive until the stream has passed the launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/attention_params.h"
#include "kernels/cuda_kernels.h"

namespace attnd::kernels {

// Tokens of one sequence are counted in int32 with room for sums of two: lengths, and the distance
// between a query's and a key's place, are cut to this before masks are computed.
inline constexpr std::int64_t kMaxDeviceTokens = std::int64_t{1} << 30;

// The paged cache as kernels address it: token t of KV head h is at
//   pool + 128 * page_table[t >> page_shift] + h * head_block_bytes + (t & page_mask) * row_bytes
// and its value v_offset_bytes further.
struct PagePool {
  const std::byte* base = nullptr;
  std::int64_t v_offset_bytes = 0;
  std::int64_t head_block_bytes = 0;
  std::int32_t row_bytes = 0;
  std::int32_t page_shift = 0;
  std::uint32_t end_entry = 0;  // page table entries below it are pages inside the pool
};
PagePool MakePagePool(const AttentionParams& params);

// A prefill CTA's work: one tile of query rows of one sequence, for one head.
struct PrefillTask {
  std::int32_t sequence = 0;
  std::int32_t query_tile = 0;
};

// A decode CTA's work: keys [first_key, last_key) of one sequence for all query rows of one KV head
// (blockIdx.y). With one split the CTA writes o itself; otherwise its state goes to the partials.
struct DecodeTask {
  std::int32_t sequence = 0;
  std::int32_t first_key = 0;
  std::int32_t last_key = 0;
  std::int32_t split = 0;  // among the sequence's splits, ascending in KV order
};

// Where the splits of one sequence are, for the combine.
struct DecodeSequencePlan {
  std::int32_t num_splits = 0;
  std::int64_t first_partial = 0;  // row index of (split 0, query row 0, head 0) in the partials
};

struct CudaLaunchParams {
  AttentionParams attention;  // `sequences` and everything they point to: device memory
  PagePool pages;
  std::int32_t group = 1;  // num_heads / num_kv_heads
  const PrefillTask* prefill_tasks = nullptr;
  const DecodeTask* decode_tasks = nullptr;
  const DecodeSequencePlan* decode_plans = nullptr;  // one a sequence
  std::int32_t num_tasks = 0;
  std::int32_t tail_heads = 1;               // prefill: PrefillPlan
  const std::int32_t* tail_order = nullptr;  // prefill: PrefillPlan
  std::int32_t max_query_rows = 0;  // decode: the largest query_length * group of the batch
  std::int32_t max_splits = 1;
  float* partial_o = nullptr;       // [split][query token][head][head_dim], FP32
  float2* partial_state = nullptr;  // [split][query token][head]: base-2 row_max, row_sum
  CudaLaunchStatus* status = nullptr;
  // Prefill: bit task * num_heads + head; decode and naive: bit sequence * num_heads + head.
  // That tile holds a non-finite output, which a hidden value may have caused, and must run again
  // on the exact row.
  std::uint32_t* nonfinite_tiles = nullptr;
  // Exact rows only. rerun_of[task]: the row of rerun_flags (nonfinite_tiles of the launch before)
  // that decides whether the task runs; null: every task runs.
  const std::int32_t* rerun_of = nullptr;
  const std::uint32_t* rerun_flags = nullptr;
};

using CudaLaunch = cudaError_t (*)(const CudaLaunchParams& params, cudaStream_t stream);

}  // namespace attnd::kernels
