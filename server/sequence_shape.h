// From a creation request to the fixed part of a sequence: page layout, and options by layer.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "server/page_pool.h"
#include "server/sequence_state.h"
#include "server/sequence_types.h"

namespace attnd {

// What the server allows any sequence.
struct ShapeLimits {
  int page_tokens = 0;  // 0: by shape
  std::int64_t max_tokens = 0;
  std::int64_t window_slack_tokens = 0;
};

// max_tokens of the shape is what the request wants, or where it wants nothing the most that the
// limits allow and that an empty pool can hold, in all layers at once; a layer with a window holds
// that and its slack. OUT_OF_RANGE where the request wants more, and where a page would not fit a
// slab. The request's layer groups have been checked.
absl::StatusOr<std::shared_ptr<const SequenceShape>> MakeSequenceShape(
    const CreateSequenceSpec& spec, const ShapeLimits& limits, PagePool& pool);

}  // namespace attnd
