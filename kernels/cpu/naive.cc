#include "kernels/cpu/naive.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/cpu/cpu_executor.h"
#include "kernels/cpu/kv_rows.h"
#include "kernels/cpu/naive_gemm.h"
#include "kernels/cpu/naive_softmax.h"
#include "kernels/cpu/row_output.h"
#include "kernels/key_range.h"

namespace attnd::kernels {
namespace {

// Query rows of one library call. 256 x 4096 x 128 ran at 97 % of the vdpbf16ps rate, 4096 rows at
// 78 %: the block of scores stays in the second-level cache.
constexpr std::int64_t kBlockRows = 256;
constexpr std::int64_t kGatherTokens = 512;  // tokens that one work item gathers
constexpr std::int64_t kAlignment = 128;
// Sequences are worked on together while their scores stay below this, so that many short ones
// share the barriers; a longer one is worked on alone.
constexpr std::int64_t kWaveBytes = std::int64_t{256} << 20;

std::int64_t Align(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::int64_t RoundUp(std::int64_t value, std::int64_t granule) {
  return (value + granule - 1) / granule * granule;
}

// How a batch's tensors are fed to the library.
struct Format {
  bool bf16;     // BF16 products; else FP32
  bool widened;  // the inputs are 16-bit and the products FP32
  std::int64_t element_bytes;
};

Format ChooseFormat(DataType type) {
  const bool bf16 = type == DataType::kBf16 && Bf16GemmSupported();
  return {bf16, type != DataType::kFp32 && !bf16, bf16 ? 2 : 4};
}

// Where one sequence's matrices lie in the workspace (byte offsets from its wave's base), and its
// first work items in the wave.
struct SequenceLayout {
  std::int64_t num_rows = 0;     // of one KV head: query tokens x group
  std::int64_t padded_keys = 0;  // leading dimension of scores and probabilities
  bool gathered = false;
  std::int64_t q = 0, k = 0, v = 0, scores = 0, probabilities = 0, states = 0, bytes = 0;
  std::int64_t first_block = 0, first_gather = 0;
};

SequenceLayout LayOut(const AttentionParams& params, const AttentionSequence& sequence,
                      const Format& format) {
  SequenceLayout layout;
  layout.num_rows = std::int64_t{sequence.query_length} * (params.num_heads / params.num_kv_heads);
  layout.padded_keys = RoundUp(sequence.kv_length, kNaiveKeyGranule);
  layout.gathered = sequence.kv_length > 0 && (sequence.kv.page_table != nullptr || format.widened);
  const std::int64_t rows = layout.num_rows * params.num_kv_heads;
  const std::int64_t kv_bytes = layout.gathered ? layout.padded_keys * params.num_kv_heads *
                                                      params.head_dim * format.element_bytes
                                                : 0;
  std::int64_t offset = 0;
  const auto place = [&offset](std::int64_t bytes) {
    const std::int64_t begin = offset;
    offset += Align(bytes);
    return begin;
  };
  layout.q = place(rows * params.head_dim * format.element_bytes);
  layout.k = place(kv_bytes);
  layout.v = place(kv_bytes);
  layout.scores = place(rows * layout.padded_keys * 4);
  layout.probabilities =
      format.bf16 ? place(rows * layout.padded_keys * 2) : layout.scores;  // FP32: in place
  layout.states = place(rows * static_cast<std::int64_t>(sizeof(NaiveSoftmaxState)));
  layout.bytes = offset;
  return layout;
}

// One past the last sequence of the wave that starts at `begin`; `bytes`: its workspace.
int WaveEnd(const AttentionParams& params, const Format& format, int begin, std::int64_t& bytes) {
  bytes = LayOut(params, params.sequences[begin], format).bytes;
  int end = begin + 1;
  for (; end < params.num_sequences; ++end) {
    const std::int64_t more = LayOut(params, params.sequences[end], format).bytes;
    if (bytes + more > kWaveBytes) break;
    bytes += more;
  }
  return end;
}

std::int64_t OutputScratchBytes(const AttentionParams& params) {
  return Align(kBlockRows * params.head_dim * 4);
}

NaivePasses ChoosePasses() {
  if (CpuTargetSupported(CpuTarget::kAvx512)) return NaivePassesAvx512();
  return CpuTargetSupported(CpuTarget::kAvx2) ? NaivePassesAvx2() : NaivePassesScalar();
}

class NaiveLaunch {
 public:
  NaiveLaunch(const AttentionParams& params, int num_threads, std::byte* workspace)
      : params_(params),
        format_(ChooseFormat(params.data_type)),
        passes_(ChoosePasses()),
        group_(params.num_heads / params.num_kv_heads) {
    layouts_ = reinterpret_cast<SequenceLayout*>(workspace);
    output_scratch_ =
        workspace + Align(params.num_sequences * static_cast<std::int64_t>(sizeof(SequenceLayout)));
    wave_ = output_scratch_ + num_threads * OutputScratchBytes(params);
  }

  LaunchResult Run(CpuExecutor& executor) {
    PrepareGemm();
    for (int begin = 0; begin < params_.num_sequences;) {
      std::int64_t bytes = 0;
      const int end = WaveEnd(params_, format_, begin, bytes);
      RunWave(begin, end, executor);
      begin = end;
    }
    if (failed_.load(std::memory_order_relaxed)) return {LaunchStatus::kDeviceFault, 0};
    return {LaunchStatus::kOk, exact_reruns_.load(std::memory_order_relaxed)};
  }

 private:
  // Rows [row_begin, row_end) of one KV head of one sequence.
  struct Block {
    int sequence, kv_head;
    std::int64_t row_begin, row_end;
  };

  void RunWave(int begin, int end, CpuExecutor& executor) {
    std::int64_t offset = 0;
    std::int64_t blocks = 0;
    std::int64_t gathers = 0;
    for (int i = begin; i < end; ++i) {
      SequenceLayout layout = LayOut(params_, params_.sequences[i], format_);
      for (std::int64_t* place : {&layout.q, &layout.k, &layout.v, &layout.scores,
                                  &layout.probabilities, &layout.states}) {
        *place += offset;
      }
      offset += layout.bytes;
      layout.first_block = blocks;
      layout.first_gather = gathers;
      blocks += (layout.num_rows + kBlockRows - 1) / kBlockRows * params_.num_kv_heads;
      if (layout.gathered && layout.num_rows > 0) {
        gathers += (layout.padded_keys + kGatherTokens - 1) / kGatherTokens * params_.num_kv_heads;
      }
      layouts_[i] = layout;
    }
    ParallelFor(executor, gathers, [&](std::int64_t item) { Gather(begin, end, item); });
    ParallelFor(executor, blocks,
                [&](std::int64_t item) { ComputeScores(FindBlock(begin, end, item)); });
    ParallelFor(executor, blocks,
                [&](std::int64_t item) { ComputeSoftmax(FindBlock(begin, end, item)); });
    ParallelFor(executor, blocks, [&](std::int64_t item, int worker) {
      ComputeOutput(FindBlock(begin, end, item), worker);
    });
  }

  Block FindBlock(int begin, int end, std::int64_t item) const {
    const SequenceLayout* after = std::upper_bound(
        layouts_ + begin, layouts_ + end, item,
        [](std::int64_t value, const SequenceLayout& l) { return value < l.first_block; });
    const SequenceLayout& layout = *(after - 1);
    const std::int64_t local = item - layout.first_block;
    const std::int64_t row = local / params_.num_kv_heads * kBlockRows;
    return {static_cast<int>(&layout - layouts_), static_cast<int>(local % params_.num_kv_heads),
            row, std::min(row + kBlockRows, layout.num_rows)};
  }

  // Copies one run of tokens of one KV head into [key][head_dim], widened where asked; rows beyond
  // the sequence become zeros, so that the library sees few different lengths.
  void Gather(int begin, int end, std::int64_t item) const {
    const SequenceLayout* after = std::upper_bound(
        layouts_ + begin, layouts_ + end, item,
        [](std::int64_t value, const SequenceLayout& l) { return value < l.first_gather; });
    const SequenceLayout& layout = *(after - 1);
    const AttentionSequence& sequence = params_.sequences[&layout - layouts_];
    const std::int64_t local = item - layout.first_gather;
    const auto kv_head = static_cast<int>(local % params_.num_kv_heads);
    const std::int64_t first = local / params_.num_kv_heads * kGatherTokens;
    const std::int64_t last = std::min(first + kGatherTokens, layout.padded_keys);
    const KvRows rows(params_, sequence, kv_head);
    const std::int64_t row_bytes = params_.head_dim * format_.element_bytes;
    const std::int64_t base = kv_head * layout.padded_keys;
    for (std::int64_t token = first; token < last; ++token) {
      std::byte* k = wave_ + layout.k + (base + token) * row_bytes;
      std::byte* v = wave_ + layout.v + (base + token) * row_bytes;
      if (token >= sequence.kv_length) {
        std::memset(k, 0, row_bytes);
        std::memset(v, 0, row_bytes);
        continue;
      }
      CopyRow(rows.Key(token), params_.kv_data_type, k);
      CopyRow(rows.Value(token), params_.kv_data_type, v);
    }
  }

  void CopyRow(const std::byte* from, DataType type, std::byte* to) const {
    if (!format_.widened) {
      std::memcpy(to, from, params_.head_dim * format_.element_bytes);
      return;
    }
    passes_.widen(from, type, params_.head_dim, reinterpret_cast<float*>(to));
  }

  struct Operand {
    const std::byte* data;
    std::int64_t leading_dimension;
  };

  Operand KeysOrValues(const Block& block, bool values) const {
    const SequenceLayout& layout = layouts_[block.sequence];
    if (layout.gathered) {
      const std::int64_t row_bytes = params_.head_dim * format_.element_bytes;
      return {
          wave_ + (values ? layout.v : layout.k) + block.kv_head * layout.padded_keys * row_bytes,
          params_.head_dim};
    }
    const KvView& kv = params_.sequences[block.sequence].kv;
    const auto* data = static_cast<const std::byte*>(values ? kv.v : kv.k);
    const std::int64_t head_stride = values ? kv.v_head_stride : kv.k_head_stride;
    return {data + block.kv_head * head_stride * format_.element_bytes,
            values ? kv.v_token_stride : kv.k_token_stride};
  }

  std::int64_t NumKeys(const Block& block) const {
    const SequenceLayout& layout = layouts_[block.sequence];
    return layout.gathered ? layout.padded_keys : params_.sequences[block.sequence].kv_length;
  }

  std::int64_t FirstRow(const Block& block) const {  // among all rows of the sequence
    return block.kv_head * layouts_[block.sequence].num_rows + block.row_begin;
  }

  void ComputeScores(const Block& block) {
    const SequenceLayout& layout = layouts_[block.sequence];
    const AttentionSequence& sequence = params_.sequences[block.sequence];
    if (sequence.kv_length == 0) return;
    const std::int64_t q_row_bytes = params_.head_dim * format_.element_bytes;
    std::byte* q = wave_ + layout.q + FirstRow(block) * q_row_bytes;
    for (std::int64_t row = block.row_begin; row < block.row_end; ++row) {
      const std::int64_t element =
          row / group_ * sequence.q_token_stride + Head(block, row) * sequence.q_head_stride;
      CopyRow(static_cast<const std::byte*>(sequence.q) + element * ElementBytes(params_.data_type),
              params_.data_type, q + (row - block.row_begin) * q_row_bytes);
    }
    const Operand keys = KeysOrValues(block, false);
    Multiply({block.row_end - block.row_begin, NumKeys(block), params_.head_dim, q,
              params_.head_dim, keys.data, keys.leading_dimension, true, Scores(block),
              layout.padded_keys, format_.bf16});
  }

  void ComputeSoftmax(const Block& block) {
    const SequenceLayout& layout = layouts_[block.sequence];
    const AttentionSequence& sequence = params_.sequences[block.sequence];
    NaiveSoftmaxState* states = States(block);
    for (std::int64_t row = block.row_begin; row < block.row_end; ++row) {
      const std::int64_t local = row - block.row_begin;
      const std::int64_t token = row / group_;
      states[local] = passes_.softmax(
          {&sequence, token, Head(block, row), VisibleKeys(sequence, token), layout.padded_keys,
           Scores(block) + local * layout.padded_keys,
           Probabilities(block) + local * ProbabilityRowBytes(layout), format_.bf16});
    }
  }

  void ComputeOutput(const Block& block, int worker) {
    const SequenceLayout& layout = layouts_[block.sequence];
    auto* output = reinterpret_cast<float*>(output_scratch_ + worker * OutputScratchBytes(params_));
    const std::int64_t rows = block.row_end - block.row_begin;
    if (params_.sequences[block.sequence].kv_length > 0) {
      const Operand values = KeysOrValues(block, true);
      Multiply({rows, params_.head_dim, NumKeys(block), Probabilities(block), layout.padded_keys,
                values.data, values.leading_dimension, false, output, params_.head_dim,
                format_.bf16});
    } else {
      std::memset(output, 0, rows * params_.head_dim * sizeof(float));
    }
    const NaiveSoftmaxState* states = States(block);
    std::int64_t reruns = 0;
    for (std::int64_t row = block.row_begin; row < block.row_end; ++row) {
      const std::int64_t local = row - block.row_begin;
      reruns += FinishRow(params_, block.sequence, Head(block, row), row / group_,
                          {output + local * params_.head_dim, states[local].row_max,
                           states[local].row_sum})
                    ? 1
                    : 0;
    }
    exact_reruns_.fetch_add(reruns, std::memory_order_relaxed);
  }

  void Multiply(const GemmProblem& problem) {
    if (!RunGemm(problem)) failed_.store(true, std::memory_order_relaxed);
  }

  int Head(const Block& block, std::int64_t row) const {
    return block.kv_head * group_ + static_cast<int>(row % group_);
  }

  float* Scores(const Block& block) const {
    const SequenceLayout& layout = layouts_[block.sequence];
    return reinterpret_cast<float*>(wave_ + layout.scores) + FirstRow(block) * layout.padded_keys;
  }

  std::int64_t ProbabilityRowBytes(const SequenceLayout& layout) const {
    return layout.padded_keys * (format_.bf16 ? 2 : 4);
  }

  std::byte* Probabilities(const Block& block) const {
    const SequenceLayout& layout = layouts_[block.sequence];
    return wave_ + layout.probabilities + FirstRow(block) * ProbabilityRowBytes(layout);
  }

  NaiveSoftmaxState* States(const Block& block) const {
    return reinterpret_cast<NaiveSoftmaxState*>(wave_ + layouts_[block.sequence].states) +
           FirstRow(block);
  }

  const AttentionParams& params_;
  const Format format_;
  const NaivePasses passes_;
  const int group_;
  SequenceLayout* layouts_;    // [num_sequences], those of the current wave filled in
  std::byte* output_scratch_;  // FP32 [kBlockRows][head_dim] a worker
  std::byte* wave_;            // matrices of the current wave
  std::atomic<std::int64_t> exact_reruns_{0};
  std::atomic<bool> failed_{false};
};

}  // namespace

std::int64_t NaiveWorkspaceBytes(const AttentionParams& params, int num_threads) {
  const Format format = ChooseFormat(params.data_type);
  std::int64_t largest_wave = 0;
  for (int begin = 0; begin < params.num_sequences;) {
    std::int64_t bytes = 0;
    begin = WaveEnd(params, format, begin, bytes);
    largest_wave = std::max(largest_wave, bytes);
  }
  return Align(params.num_sequences * static_cast<std::int64_t>(sizeof(SequenceLayout))) +
         num_threads * OutputScratchBytes(params) + largest_wave;
}

LaunchResult LaunchNaive(const AttentionParams& params, const LaunchPlan& plan,
                         std::byte* workspace, CpuExecutor& executor) {
  if (GemmFault() != nullptr) return {LaunchStatus::kUnsupported, 0};
  return NaiveLaunch(params, plan.num_threads, workspace).Run(executor);
}

}  // namespace attnd::kernels
