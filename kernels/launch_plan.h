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
// Shorter splits cost more in merging than they win in balance: 512 keys of one KV head at d 128 in
// BF16 are 256 KiB, about 10 us of one thread's memory bandwidth. Of several heads that an item
// takes together, the keys of all count.
inline constexpr std::int64_t kMinSplitTokens = 512;

// Keys of one split for this batch; at least 1.
std::int64_t ChooseSplitTokens(const AttentionParams& params, int num_threads,
                               const PlanOptions& options);

// KV heads that one work item of `sequence` takes together, at most `limit`: as many as keep their
// query rows within kMaxDecodeRows. Heads do not see each other, so this never changes a bit.
int DecodeHeadsPerItem(const AttentionParams& params, const AttentionSequence& sequence, int limit);

// The limit for this batch under the plan's splits: every head, or fewer where that would leave
// threads without work.
int ChooseHeadsPerItem(const AttentionParams& params, std::int64_t split_tokens, int num_threads,
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
