// Page table entries against the pool's size, before anything is read through them.
#pragma once

#include <cstdint>

#include "kernels/attention_params.h"

namespace attnd::kernels {

// True when entries [first, first + count) all name a page that lies wholly inside the pool.
inline bool PagesInsidePool(const PageLayout& layout, std::int64_t pool_bytes,
                            const std::uint32_t* page_table, std::int64_t first,
                            std::int64_t count) {
  const std::int64_t room = pool_bytes - layout.page_bytes();
  if (room < 0) return count <= 0;
  const std::int64_t last_unit = room / kPageUnitBytes;
  bool inside = true;
  for (std::int64_t i = first; i < first + count; ++i) inside &= page_table[i] <= last_unit;
  return inside;
}

}  // namespace attnd::kernels
