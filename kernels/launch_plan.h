// Splits of the decode family. Pure host code; PlanAttention (attention_kernels.h) puts the result
// into a LaunchPlan, the decode driver cuts its work by it.
#pragma once

#include <cstdint>

#include "kernels/attention_kernels.h"
#include "kernels/key_range.h"

namespace attnd::kernels {

// A split holds this many keys under PlanOptions::batch_invariant, starting at absolute multiples
// of it on the sequence's position axis: where a split ends must not depend on how much of the
// sequence is cached yet, or on its neighbours.
inline constexpr std::int64_t kInvariantSplitTokens = 1024;
// Shorter splits cost more in merging than they win in balance: a split of 512 keys at d 128 in
// BF16 is 256 KiB, about 10 us of one thread's memory bandwidth; merging it is below 1 us.
inline constexpr std::int64_t kMinSplitTokens = 512;

// Keys of one split for this batch; at least 1.
std::int64_t ChooseSplitTokens(const AttentionParams& params, int num_threads,
                               const PlanOptions& options);

// The splits of one sequence: split i covers the intersection of its visible keys with
// [origin + i * split_tokens, origin + (i + 1) * split_tokens), key indices.
struct SequenceSplits {
  KeyRange keys;            // that any row sees
  std::int64_t origin = 0;  // may be below keys.begin (and negative: a multiple on another axis)
  int num_splits = 1;       // 1 also when no key is visible
  KeyRange Split(int index, std::int64_t split_tokens) const;
};
SequenceSplits SplitSequence(const AttentionSequence& sequence, std::int64_t split_tokens,
                             const PlanOptions& options);

}  // namespace attnd::kernels
