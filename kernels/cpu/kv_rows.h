// Addresses of the keys and values of one sequence, from one KV head on, paged or contiguous.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/attention_params.h"

namespace attnd::kernels {

class KvRows {
 public:
  KvRows(const AttentionParams& params, const AttentionSequence& sequence, int kv_head)
      : page_table_(sequence.kv.page_table) {
    const std::int64_t element = ElementBytes(params.kv_data_type);
    if (page_table_ != nullptr) {
      const PageLayout& layout = params.page_layout;
      k_ = params.pool + kv_head * layout.head_block_bytes();
      v_ = k_ + layout.v_offset_bytes();
      k_stride_ = v_stride_ = layout.padded_head_dim * element;
      k_head_bytes_ = v_head_bytes_ = layout.head_block_bytes();
      page_shift_ = std::countr_zero(static_cast<std::uint32_t>(layout.page_tokens));
      page_mask_ = layout.page_tokens - 1;
      return;
    }
    const KvView& kv = sequence.kv;
    if (kv.k == nullptr) return;  // no keys: no address is ever asked for
    k_ = static_cast<const std::byte*>(kv.k) + kv_head * kv.k_head_stride * element;
    v_ = static_cast<const std::byte*>(kv.v) + kv_head * kv.v_head_stride * element;
    k_stride_ = kv.k_token_stride * element;
    v_stride_ = kv.v_token_stride * element;
    k_head_bytes_ = kv.k_head_stride * element;
    v_head_bytes_ = kv.v_head_stride * element;
  }

  bool paged() const { return page_table_ != nullptr; }
  const std::byte* Key(std::int64_t token) const { return k_ + Offset(token, k_stride_); }
  const std::byte* Value(std::int64_t token) const { return v_ + Offset(token, v_stride_); }
  // From a row of one KV head to the same token's row of the next head.
  std::int64_t k_head_bytes() const { return k_head_bytes_; }
  std::int64_t v_head_bytes() const { return v_head_bytes_; }
  // From one row to the next inside a run of ContiguousRows.
  std::int64_t k_row_bytes() const { return k_stride_; }
  std::int64_t v_row_bytes() const { return v_stride_; }
  // How many rows, from `token` on and at most `limit`, follow each other at the row stride.
  int ContiguousRows(std::int64_t token, int limit) const {
    if (page_table_ == nullptr) return limit;
    const std::int64_t left = page_mask_ + 1 - (token & page_mask_);
    return left < limit ? static_cast<int>(left) : limit;
  }

 private:
  std::int64_t Offset(std::int64_t token, std::int64_t stride) const {
    if (page_table_ == nullptr) return token * stride;
    return std::int64_t{page_table_[token >> page_shift_]} * kPageUnitBytes +
           (token & page_mask_) * stride;
  }

  const std::uint32_t* page_table_;
  const std::byte* k_ = nullptr;
  const std::byte* v_ = nullptr;
  std::int64_t k_stride_ = 0, v_stride_ = 0;
  std::int64_t k_head_bytes_ = 0, v_head_bytes_ = 0;
  int page_shift_ = 0;
  std::int64_t page_mask_ = 0;
};

}  // namespace attnd::kernels
