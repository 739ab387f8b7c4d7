// Where a copy of a page reads and writes, checked against the memory that there is.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "server/attention_backend.h"
#include "server/batch.h"

namespace attnd {

struct PagePlaces {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};

// INTERNAL where the copy leaves the pool or the host memory.
absl::StatusOr<PagePlaces> PlacesOf(const PageCopy& copy, const kernels::PageLayout& layout,
                                    const BackendLimits& limits);

}  // namespace attnd
