// Exact merge of partial attention states: results of disjoint KV ranges, asked for with `partial`,
// become the result over their union.
#pragma once

#include <span>

#include "absl/status/statusor.h"
#include "client/tensor.h"

namespace attnd::client {

// One part: o FP32 [tokens, num_heads, head_dim], lse FP32 [tokens, num_heads] (natural log; -inf
// where the range shows a row nothing).
struct PartialState {
  Tensor o, lse;
};

struct MergedState {
  Tensor o;    // in `type`
  Tensor lse;  // FP32, the sink included
};

// `parts` in ascending KV order, one or more. `sink_logits`: num_heads values that join the
// denominator once, or none. A row that every part leaves empty has o 0 and lse -inf (or the sink
// logit); NaN in a part that is not empty propagates. INVALID_ARGUMENT names the part and the field
// that does not fit.
absl::StatusOr<MergedState> MergeStates(std::span<const PartialState> parts,
                                        std::span<const float> sink_logits, v1::DataType type);

}  // namespace attnd::client
