// How a naive launch is cut: pure host code.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention_params.h"

namespace attnd::kernels::naive {

// Neighbouring sequences that are computed together, as one batch of products padded to the longest
// of them. All members are element counts; matrices of (sequence, KV head) lie one after the other:
//   q, o [group * query_rows][width]   row g * query_rows + token; o after P V
//   k, v [keys][width]
//   s, p [group * query_rows][pitch]
struct NaiveChunk {
  std::int32_t first_sequence = 0, num_sequences = 0;
  std::int32_t query_rows = 0;  // tokens, the most of the chunk
  std::int32_t keys = 0;        // the most of the chunk
  std::int32_t pitch = 0;       // keys, rounded up to 16 bytes of either type
  bool keys_in_place = false;   // one sequence, contiguous: the products read its own K and V
};

// Where the matrices of a chunk lie in the scratch memory, in bytes; all chunks share it in turn.
struct NaiveScratch {
  std::int64_t q = 0, k = 0, v = 0, s = 0, p = 0, o = 0, bytes = 0;
};

struct NaivePlan {
  std::vector<NaiveChunk> chunks;
  std::int32_t width = 0;    // head_dim rounded up to 16 bytes
  std::int64_t scratch = 0;  // bytes, of the largest chunk
};

NaivePlan PlanNaive(const AttentionParams& params);
NaiveScratch LayOut(const AttentionParams& params, const NaivePlan& plan, const NaiveChunk& chunk);

}  // namespace attnd::kernels::naive
