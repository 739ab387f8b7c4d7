#include "kernels/launch_plan.h"

#include <algorithm>

namespace attnd::kernels {
namespace {

// Work items a thread should get at least, so that the last one to finish is not far behind.
constexpr std::int64_t kItemsPerThread = 16;
constexpr std::int64_t kSplitGranule = 64;

std::int64_t FloorDivide(std::int64_t value, std::int64_t divisor) {
  return value >= 0 ? value / divisor : -((-value + divisor - 1) / divisor);
}

std::int64_t RoundUp(std::int64_t value, std::int64_t granule) {
  return (value + granule - 1) / granule * granule;
}

}  // namespace

std::int64_t ChooseSplitTokens(const AttentionParams& params, int num_threads,
                               const PlanOptions& options) {
  if (options.batch_invariant) return kInvariantSplitTokens;
  std::int64_t longest = 1;
  std::int64_t total = 0;
  for (int i = 0; i < params.num_sequences; ++i) {
    const AttentionSequence& sequence = params.sequences[i];
    const std::int64_t keys = VisibleKeys(sequence, 0, sequence.query_length).size();
    longest = std::max(longest, keys);
    total += keys * params.num_kv_heads;
  }
  if (options.forced_splits > 0) {
    return (longest + options.forced_splits - 1) / options.forced_splits;
  }
  if (num_threads <= 1) return longest;
  // Items take all KV heads of a split, as far as their rows allow; total counts keys x heads.
  const std::int64_t heads =
      params.num_sequences == 0
          ? 1
          : DecodeHeadsPerItem(params, params.sequences[0], params.num_kv_heads);
  const std::int64_t balanced = total / (num_threads * kItemsPerThread * heads);
  const std::int64_t rounded = RoundUp(balanced, kSplitGranule);
  const std::int64_t shortest = RoundUp(kMinSplitTokens / heads, kSplitGranule);
  return std::min(longest, std::max(rounded, shortest));
}

int DecodeHeadsPerItem(const AttentionParams& params, const AttentionSequence& sequence,
                       int limit) {
  const std::int64_t rows =
      std::int64_t{sequence.query_length} * (params.num_heads / params.num_kv_heads);
  const std::int64_t fitting = rows == 0 ? limit : kMaxDecodeRows / rows;
  return static_cast<int>(std::clamp<std::int64_t>(fitting, 1, std::max(limit, 1)));
}

int ChooseHeadsPerItem(const AttentionParams& params, std::int64_t split_tokens, int num_threads,
                       const PlanOptions& options) {
  std::int64_t splits = 0;
  for (int i = 0; i < params.num_sequences; ++i) {
    splits += SplitSequence(params.sequences[i], split_tokens, options).num_splits;
  }
  int heads = params.num_kv_heads;
  while (heads > 1 && splits * ((params.num_kv_heads + heads - 1) / heads) < 2 * num_threads) {
    heads = (heads + 1) / 2;
  }
  return heads;
}

SequenceSplits SplitSequence(const AttentionSequence& sequence, std::int64_t split_tokens,
                             const PlanOptions& options) {
  SequenceSplits splits;
  splits.keys = VisibleKeys(sequence, 0, sequence.query_length);
  splits.origin = splits.keys.begin;
  if (options.batch_invariant) {
    const std::int64_t position = sequence.key_position + splits.keys.begin;
    splits.origin = FloorDivide(position, split_tokens) * split_tokens - sequence.key_position;
  }
  const std::int64_t covered = splits.keys.end - splits.origin;
  splits.num_splits =
      static_cast<int>(std::max<std::int64_t>(1, (covered + split_tokens - 1) / split_tokens));
  return splits;
}

KeyRange SequenceSplits::Split(int index, std::int64_t split_tokens) const {
  const std::int64_t begin = std::max(keys.begin, origin + index * split_tokens);
  const std::int64_t end = std::min(keys.end, origin + (index + 1) * split_tokens);
  return end > begin ? KeyRange{begin, end} : KeyRange{0, 0};
}

}  // namespace attnd::kernels
