// Exact work of one sequence under its masks; the base of AttentionCost (attention_kernels.h).
// Pure.
#pragma once

#include <cstdint>

#include "kernels/attention_params.h"
#include "kernels/key_range.h"

namespace attnd::kernels {

struct SequenceWork {
  std::int64_t visible_pairs = 0;  // (query row, key) pairs of one head that masks leave visible
  KeyRange visible_keys;           // keys that any row sees
};
SequenceWork MeasureSequence(const AttentionSequence& sequence);

// Bytes of K and V rows of `num_keys` keys over all KV heads, as `sequence` stores them (rows of
// pages are padded).
double KvBytes(const AttentionParams& params, const AttentionSequence& sequence,
               std::int64_t num_keys);

}  // namespace attnd::kernels
