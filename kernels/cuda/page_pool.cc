#include <bit>

#include "kernels/cuda/cuda_launch_params.h"

namespace attnd::kernels {

PagePool MakePagePool(const AttentionParams& params) {
  const PageLayout& layout = params.page_layout;
  PagePool pages;
  pages.base = params.pool;
  pages.v_offset_bytes = layout.v_offset_bytes();
  pages.head_block_bytes = layout.head_block_bytes();
  pages.row_bytes = layout.padded_head_dim * ElementBytes(layout.data_type);
  pages.page_shift = std::countr_zero(static_cast<std::uint32_t>(layout.page_tokens));
  if (params.pool_bytes >= layout.page_bytes()) {
    pages.end_entry =
        static_cast<std::uint32_t>((params.pool_bytes - layout.page_bytes()) / kPageUnitBytes + 1);
  }
  return pages;
}

}  // namespace attnd::kernels
