// A plain unfused attention pipeline in the tensors' own type: FP32 scores, softmax and sums in
// order, probabilities and output rounded to the type. Its error against float64 is the yardstick
// for every kernel.
#pragma once

#include <vector>

#include "kernels/attention_params.h"

namespace attnd {

struct ProblemOutput {
  std::vector<double> o;    // [query_length][num_heads][head_dim]
  std::vector<double> lse;  // [query_length][num_heads]
};

ProblemOutput PlainAttention(const kernels::AttentionParams& params, int sequence);

}  // namespace attnd
