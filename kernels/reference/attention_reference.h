// The oracle of the tests: attention straight from its definition, in float64, one key after the
// other. It shares no code with the kernels: visibility, addresses and element conversion are its
// own. Slow.
#pragma once

#include <vector>

#include "kernels/attention_params.h"

namespace attnd::kernels {

struct ReferenceOutput {
  std::vector<double> o;    // [query_length][num_heads][head_dim]
  std::vector<double> lse;  // [query_length][num_heads], natural log; -inf: no visible key
};

// Every option of AttentionSequence. Like every kernel it takes scores as FP32 numbers: one beyond
// FP32 is infinite, and one of -inf hides its key. Inputs are never modified; page ids must lie
// inside the pool.
ReferenceOutput ReferenceAttention(const AttentionParams& params, int sequence);

// Float64 value of element `index` of an array of FP32, FP16 or BF16.
double ReferenceElement(const void* data, DataType type, std::int64_t index);

}  // namespace attnd::kernels
