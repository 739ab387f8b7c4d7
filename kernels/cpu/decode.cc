#include "kernels/cpu/decode.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_executor.h"
#include "kernels/cpu/decode_segment.h"
#include "kernels/cpu/row_output.h"
#include "kernels/launch_plan.h"

namespace attnd::kernels {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr std::int64_t kAlignment = 128;

// Where one sequence's work and partial states begin; the last entry holds the totals.
struct SequenceStart {
  std::int64_t item = 0;
  std::int64_t partial_row = 0;
};

// One partial state: accumulator[padded head_dim], then row_max and row_sum, padded to whole lines.
std::int64_t PartialRowFloats(const AttentionParams& params) {
  return PaddedHeadDim(params.head_dim) + 16;
}

struct WorkspaceLayout {
  std::int64_t scratch = 0, starts = 0, partials = 0, total = 0;  // byte offsets
};

WorkspaceLayout LayOut(const AttentionParams& params, int num_threads, std::int64_t partial_rows) {
  const auto align = [](std::int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  WorkspaceLayout layout;
  layout.starts = num_threads * static_cast<std::int64_t>(sizeof(DecodeScratch));
  layout.partials = layout.starts + align((params.num_sequences + 1) *
                                          static_cast<std::int64_t>(sizeof(SequenceStart)));
  layout.total = layout.partials + align(partial_rows * PartialRowFloats(params) *
                                         static_cast<std::int64_t>(sizeof(float)));
  return layout;
}

std::int64_t PartialRows(const AttentionParams& params, const AttentionSequence& sequence,
                         int num_splits) {
  return num_splits == 1 ? 0 : std::int64_t{num_splits} * sequence.query_length * params.num_heads;
}

class DecodeLaunch {
 public:
  DecodeLaunch(const AttentionParams& params, const LaunchPlan& plan, std::byte* workspace,
               DecodeSegmentFunction run_segment)
      : params_(params), plan_(plan), run_segment_(run_segment) {
    const WorkspaceLayout layout = LayOut(params, plan.num_threads, 0);
    scratch_ = reinterpret_cast<DecodeScratch*>(workspace + layout.scratch);
    starts_ = reinterpret_cast<SequenceStart*>(workspace + layout.starts);
    partials_ = reinterpret_cast<float*>(workspace + layout.partials);
    FillStarts();
  }

  LaunchResult Run(CpuExecutor& executor) {
    const std::int64_t items = starts_[params_.num_sequences].item;
    if (IsTiny()) {
      for (std::int64_t item = 0; item < items; ++item) RunItem(item, scratch_[0]);
    } else {
      ParallelFor(executor, items,
                  [this](std::int64_t item, int worker) { RunItem(item, scratch_[worker]); });
    }
    if (starts_[params_.num_sequences].partial_row > 0) Combine(executor);
    return {LaunchStatus::kOk, exact_reruns_.load(std::memory_order_relaxed)};
  }

 private:
  int group() const { return params_.num_heads / params_.num_kv_heads; }
  int HeadsPerItem(const AttentionSequence& sequence) const {
    return DecodeHeadsPerItem(params_, sequence, plan_.kv_heads_per_item);
  }
  int HeadGroups(const AttentionSequence& sequence) const {
    const int heads = HeadsPerItem(sequence);
    return (params_.num_kv_heads + heads - 1) / heads;
  }

  void FillStarts() {
    SequenceStart start;
    for (int i = 0; i < params_.num_sequences; ++i) {
      starts_[i] = start;
      const AttentionSequence& sequence = params_.sequences[i];
      if (sequence.query_length == 0) continue;
      const SequenceSplits splits = SplitSequence(sequence, plan_.split_tokens, plan_.options);
      start.item += std::int64_t{splits.num_splits} * HeadGroups(sequence);
      start.partial_row += PartialRows(params_, sequence, splits.num_splits);
    }
    starts_[params_.num_sequences] = start;
  }

  // Work below about 25 us of one thread: waking another takes as long.
  bool IsTiny() const {
    constexpr double kTinyBytes = 512 << 10;
    constexpr double kTinyFlops = 2e6;
    return plan_.cost.expected_read_bytes <= kTinyBytes && plan_.cost.flops <= kTinyFlops;
  }

  void RunItem(std::int64_t item, DecodeScratch& scratch) {
    const SequenceStart* after =
        std::upper_bound(starts_, starts_ + params_.num_sequences, item,
                         [](std::int64_t value, const SequenceStart& s) { return value < s.item; });
    const auto index = static_cast<int>(after - starts_ - 1);
    const AttentionSequence& sequence = params_.sequences[index];
    const SequenceSplits splits = SplitSequence(sequence, plan_.split_tokens, plan_.options);
    const std::int64_t local = item - starts_[index].item;
    const auto split = static_cast<int>(local % splits.num_splits);
    const int heads = HeadsPerItem(sequence);
    const auto kv_head = static_cast<int>(local / splits.num_splits) * heads;
    DecodeSegment segment{&params_,
                          &sequence,
                          kv_head,
                          std::min(kv_head + heads, params_.num_kv_heads),
                          0,
                          0,
                          splits.Split(split, plan_.split_tokens)};
    const std::int64_t rows = std::int64_t{sequence.query_length} * group();
    for (std::int64_t row = 0; row < rows; row += kMaxDecodeRows) {
      segment.row_begin = row;
      segment.row_end = std::min<std::int64_t>(row + kMaxDecodeRows, rows);
      run_segment_(segment, scratch);
      const int states = segment.rows_per_head() * (segment.kv_head_end - segment.kv_head_begin);
      for (int state = 0; state < states; ++state) {
        if (splits.num_splits == 1) {
          StoreState(index, segment, state, scratch);
        } else {
          SavePartial(index, segment, state, split, scratch);
        }
      }
    }
  }

  void StoreState(int index, const DecodeSegment& segment, int state,
                  const DecodeScratch& scratch) {
    const int rows = segment.rows_per_head();
    const float* accumulator = scratch.accumulator + state * PaddedHeadDim(params_.head_dim);
    StoreRow(index, segment.kv_head_begin + state / rows, segment.row_begin + state % rows,
             {accumulator, scratch.row_max[state], scratch.row_sum[state]});
  }

  float* PartialRow(int index, int split, int kv_head, std::int64_t row) const {
    const std::int64_t rows =
        std::int64_t{params_.sequences[index].query_length} * group();  // of one KV head
    const std::int64_t partial = starts_[index].partial_row +
                                 (std::int64_t{split} * params_.num_kv_heads + kv_head) * rows +
                                 row;
    return partials_ + partial * PartialRowFloats(params_);
  }

  void SavePartial(int index, const DecodeSegment& segment, int state, int split,
                   const DecodeScratch& scratch) const {
    const int padded = PaddedHeadDim(params_.head_dim);
    const int rows = segment.rows_per_head();
    float* partial = PartialRow(index, split, segment.kv_head_begin + state / rows,
                                segment.row_begin + state % rows);
    std::copy_n(scratch.accumulator + state * padded, padded, partial);
    partial[padded] = scratch.row_max[state];
    partial[padded + 1] = scratch.row_sum[state];
  }

  void Combine(CpuExecutor& executor) {
    const auto combine = [this](std::int64_t item) {
      const auto index = static_cast<int>(item / params_.num_kv_heads);
      if (starts_[index].partial_row == starts_[index + 1].partial_row) return;
      const auto kv_head = static_cast<int>(item % params_.num_kv_heads);
      const std::int64_t rows = std::int64_t{params_.sequences[index].query_length} * group();
      for (std::int64_t row = 0; row < rows; ++row) CombineRow(index, kv_head, row);
    };
    const std::int64_t items = std::int64_t{params_.num_sequences} * params_.num_kv_heads;
    constexpr std::int64_t kTinyRows = 256;  // about 1 us a row of some splits
    if (starts_[params_.num_sequences].partial_row <= kTinyRows) {
      for (std::int64_t item = 0; item < items; ++item) combine(item);
    } else {
      ParallelFor(executor, items, combine);
    }
  }

  // Ascending key order; an empty split contributes nothing, so that a row which one split alone
  // sees keeps that split's bits.
  void CombineRow(int index, int kv_head, std::int64_t row) {
    const int padded = PaddedHeadDim(params_.head_dim);
    const AttentionSequence& sequence = params_.sequences[index];
    const int num_splits = SplitSequence(sequence, plan_.split_tokens, plan_.options).num_splits;
    float largest = kMinusInfinity;
    for (int split = 0; split < num_splits; ++split) {
      largest = std::max(largest, PartialRow(index, split, kv_head, row)[padded]);
    }
    alignas(64) float sum[kMaxHeadDim] = {};
    float row_sum = 0;
    for (int split = 0; split < num_splits; ++split) {
      const float* partial = PartialRow(index, split, kv_head, row);
      if (partial[padded] == kMinusInfinity) continue;
      const float weight = std::exp2(partial[padded] - largest);
      for (int dim = 0; dim < padded; ++dim) sum[dim] += weight * partial[dim];
      row_sum += weight * partial[padded + 1];
    }
    StoreRow(index, kv_head, row, {sum, largest, row_sum});
  }

  void StoreRow(int index, int kv_head, std::int64_t row, const RowResult& result) {
    const int head = kv_head * group() + static_cast<int>(row % group());
    if (FinishRow(params_, index, head, row / group(), result)) {
      exact_reruns_.fetch_add(1, std::memory_order_relaxed);
    }
  }

  const AttentionParams& params_;
  const LaunchPlan& plan_;
  DecodeSegmentFunction run_segment_;
  DecodeScratch* scratch_;
  SequenceStart* starts_;  // [num_sequences + 1]
  float* partials_;
  std::atomic<std::int64_t> exact_reruns_{0};
};

}  // namespace

std::int64_t DecodeWorkspaceBytes(const AttentionParams& params, const LaunchPlan& plan,
                                  int num_threads) {
  std::int64_t partial_rows = 0;
  for (int i = 0; i < params.num_sequences; ++i) {
    const AttentionSequence& sequence = params.sequences[i];
    const SequenceSplits splits = SplitSequence(sequence, plan.split_tokens, plan.options);
    partial_rows += PartialRows(params, sequence, splits.num_splits);
  }
  return LayOut(params, num_threads, partial_rows).total;
}

LaunchResult LaunchDecodeAvx2(const AttentionParams& params, const LaunchPlan& plan,
                              std::byte* workspace, CpuExecutor& executor) {
  return DecodeLaunch(params, plan, workspace, &DecodeSegmentAvx2).Run(executor);
}

LaunchResult LaunchDecodeAvx512(const AttentionParams& params, const LaunchPlan& plan,
                                std::byte* workspace, CpuExecutor& executor) {
  return DecodeLaunch(params, plan, workspace, &DecodeSegmentAvx512).Run(executor);
}

LaunchResult LaunchDecodeAvx512Bf16(const AttentionParams& params, const LaunchPlan& plan,
                                    std::byte* workspace, CpuExecutor& executor) {
  return DecodeLaunch(params, plan, workspace, &DecodeSegmentAvx512Bf16).Run(executor);
}

}  // namespace attnd::kernels
