// From a creation request to the fixed part of a sequence: page layout, and options by layer.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "server/page_pool.h"
#include "server/sequence_state.h"
#include "server/sequence_types.h"

namespace attnd {

// `page_tokens` 0: by shape. OUT_OF_RANGE where a page would not fit a slab. The request's layer
// groups have been checked.
absl::StatusOr<std::shared_ptr<const SequenceShape>> MakeSequenceShape(
    const CreateSequenceSpec& spec, int page_tokens, PagePool& pool);

}  // namespace attnd
