#include "kernels/cuda/decode_plan.h"

#include <algorithm>
#include <cstddef>

namespace attnd::kernels {
namespace {

// Costs in the time that a multiprocessor takes to read one token at its share of the memory
// bandwidth, about 15 ns: starting a CTA, the second launch that merges splits, each split in it.
// One CTA alone reads at that rate (measured on an H200), so that a second one on the same
// multiprocessor evens out the end of a launch but adds no bandwidth.
constexpr double kCtaTokens = 100;
constexpr double kMergeTokens = 300;
constexpr double kMergeSplitTokens = 1.5;
constexpr int kMaxSplits = 128;

struct Range {
  int first_step = 0, end_step = 0;  // in units of kDecodeStepTokens
  int steps() const { return end_step - first_step; }
};

int Ceil(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

// Steps that hold a key which any query of the sequence sees.
Range VisibleSteps(const AttentionSequence& sequence) {
  const std::int64_t diagonal = sequence.query_position - sequence.key_position;
  const std::int64_t last_query = diagonal + sequence.query_length - 1;
  std::int64_t first = 0;
  std::int64_t end = sequence.kv_length;
  if (sequence.window_left >= 0) first = std::max<std::int64_t>(diagonal - sequence.window_left, 0);
  if (sequence.causal) {
    end = std::min(end, last_query + 1);
  } else if (sequence.window_right >= 0) {
    end = std::min(end, last_query + sequence.window_right + 1);
  }
  if (sequence.query_length == 0 || end <= first) return {};
  return {static_cast<int>(first / kDecodeStepTokens), Ceil(end, kDecodeStepTokens)};
}

// Time of the launch in those units: full waves of average splits, and never less than the longest.
double Estimate(const std::vector<Range>& ranges, int split_steps, int columns, int slots) {
  std::int64_t splits = 0;
  std::int64_t steps = 0;
  int longest = 0;
  for (const Range& range : ranges) {
    const int pieces = Ceil(range.steps(), split_steps);
    splits += pieces;
    steps += range.steps();
    if (pieces > 0) longest = std::max(longest, Ceil(range.steps(), pieces));
  }
  if (splits == 0) return 0;
  const double mean = static_cast<double>(steps) / static_cast<double>(splits);
  const int waves = Ceil(splits * columns, slots);
  return std::max(waves * (mean * kDecodeStepTokens + kCtaTokens),
                  longest * kDecodeStepTokens + kCtaTokens);
}

int ChooseSplitSteps(const std::vector<Range>& ranges, int columns, int slots) {
  int longest = 1;
  for (const Range& range : ranges) longest = std::max(longest, range.steps());
  int best_steps = longest;
  double best = Estimate(ranges, longest, columns, slots);
  for (int splits = 2; splits <= std::min(longest, kMaxSplits); ++splits) {
    const int steps = Ceil(longest, splits);
    const double time =
        Estimate(ranges, steps, columns, slots) + kMergeTokens + kMergeSplitTokens * splits;
    if (time < best) {
      best = time;
      best_steps = steps;
    }
  }
  return best_steps;
}

// The step, at or before `first_step`, at which the splits of a batch-invariant launch begin: a
// multiple of the split length on the sequence's position axis, so that dropping old pages moves no
// split. May be negative.
int InvariantOrigin(const AttentionSequence& sequence, int first_step, int piece_steps) {
  // Steps are what warps share out: a place between two of them cannot be kept.
  const std::int64_t dropped =
      sequence.key_position % kDecodeStepTokens == 0 && sequence.key_position > 0
          ? sequence.key_position / kDecodeStepTokens
          : 0;
  return static_cast<int>((dropped + first_step) / piece_steps * piece_steps - dropped);
}

}  // namespace

DecodePlan PlanDecode(const AttentionParams& params, const DecodePlanOptions& options) {
  const int group = params.num_heads / params.num_kv_heads;
  DecodePlan plan;
  std::vector<Range> ranges;
  for (int i = 0; i < params.num_sequences; ++i) {
    ranges.push_back(VisibleSteps(params.sequences[i]));
    plan.max_query_rows = std::max(plan.max_query_rows, params.sequences[i].query_length * group);
  }
  const int passes = Ceil(plan.max_query_rows, options.block_rows);
  const int columns = params.num_kv_heads * std::max(passes, 1);
  // Passes over the same keys find them in the L2: then a second CTA on a multiprocessor pays.
  const int chosen =
      ChooseSplitSteps(ranges, columns, options.num_multiprocessors * (passes > 1 ? 2 : 1));

  for (int i = 0; i < params.num_sequences; ++i) {
    const Range range = ranges[static_cast<std::size_t>(i)];
    int pieces = std::max(Ceil(range.steps(), chosen), 1);
    if (options.forced_splits > 0) {
      pieces = std::max(std::min(options.forced_splits, range.steps()), 1);
    }
    int piece_steps = Ceil(range.steps(), pieces);
    int origin = range.first_step;
    if (options.batch_invariant) {
      piece_steps = kInvariantSplitTokens / kDecodeStepTokens;
      origin = InvariantOrigin(params.sequences[i], range.first_step, piece_steps);
    }
    DecodeSequencePlan sequence;
    sequence.first_partial = plan.partial_rows;
    for (int first = origin; first < range.end_step || sequence.num_splits == 0;
         first += std::max(piece_steps, 1)) {
      const int begin = std::max(first, range.first_step);
      const int end = std::min(first + piece_steps, range.end_step);
      plan.tasks.push_back(
          {i, begin * kDecodeStepTokens, end * kDecodeStepTokens, sequence.num_splits});
      ++sequence.num_splits;
    }
    plan.max_splits = std::max(plan.max_splits, sequence.num_splits);
    if (sequence.num_splits > 1) {
      plan.partial_rows +=
          std::int64_t{sequence.num_splits} * params.sequences[i].query_length * params.num_heads;
    }
    plan.sequences.push_back(sequence);
  }
  std::stable_sort(plan.tasks.begin(), plan.tasks.end(),
                   [](const DecodeTask& a, const DecodeTask& b) {
                     return a.last_key - a.first_key > b.last_key - b.first_key;
                   });
  return plan;
}

}  // namespace attnd::kernels
