// Where the rows of K and V of one KV head are, contiguous or paged, and how a warp finds them.
#pragma once

#include <cstdint>

#include "kernels/attention_params.h"
#include "kernels/cuda/cuda_launch_params.h"

namespace attnd::kernels::device {

// Lives in shared memory: it would cost 16 registers in every lane. Rows of contiguous K and V are
// less than 2 GiB apart.
struct alignas(16) KvSource {
  std::int32_t k_row_bytes, v_row_bytes;  // first, 8-byte aligned: read as a pair
  const char* k;  // row 0 of this KV head; paged: of this head in page table entry 0
  const char* v;
  const std::uint32_t* page_table;  // null: contiguous
  std::int32_t kv_length;
  std::int32_t page_shift, page_mask;
  std::uint32_t end_entry;
  CudaLaunchStatus* status;

  __device__ __forceinline__ void Set(const CudaLaunchParams& params,
                                      const AttentionSequence& sequence, int kv_head,
                                      int element_bytes) {
    const KvView& kv = sequence.kv;
    page_table = kv.page_table;
    kv_length = static_cast<std::int32_t>(sequence.kv_length);
    page_shift = params.pages.page_shift;
    page_mask = (1 << page_shift) - 1;
    end_entry = params.pages.end_entry;
    status = params.status;
    if (page_table != nullptr) {
      k = reinterpret_cast<const char*>(params.pages.base) +
          kv_head * params.pages.head_block_bytes;
      v = k + params.pages.v_offset_bytes;
      k_row_bytes = v_row_bytes = params.pages.row_bytes;
    } else {
      k = static_cast<const char*>(kv.k) + kv_head * kv.k_head_stride * element_bytes;
      v = static_cast<const char*>(kv.v) + kv_head * kv.v_head_stride * element_bytes;
      k_row_bytes = static_cast<std::int32_t>(kv.k_token_stride * element_bytes);
      v_row_bytes = static_cast<std::int32_t>(kv.v_token_stride * element_bytes);
    }
  }

  // The page table entry that holds row `row`; 0 where the source is contiguous or the row lies
  // past the end (such entries are never read). Fetched a tile ahead of its use.
  __device__ __forceinline__ std::uint32_t Entry(int row) const {
    return page_table != nullptr && row < kv_length ? __ldg(page_table + (row >> page_shift)) : 0U;
  }

  // An entry outside the pool is reported and its rows read as zeros.
  __device__ __forceinline__ bool EntryIsValid(std::uint32_t entry) const {
    if (entry < end_entry) return true;
    atomicOr(&status->faults, static_cast<std::uint32_t>(kCudaPageOutOfPool));
    return false;
  }
};

}  // namespace attnd::kernels::device
