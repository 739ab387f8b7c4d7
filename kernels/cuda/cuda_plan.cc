// Plans of CUDA launches: pure host code.
#include "kernels/cuda/cuda_plan.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "kernels/any/convert.h"
#include "kernels/cuda/prefill_plan.h"
#include "kernels/cuda/prefill_traffic.h"
#include "kernels/kernel_cost.h"

namespace attnd::kernels {
namespace {

constexpr std::int64_t kBoundary = 256;
// CTAs that a multiprocessor runs at a time, about, for the cost model.
constexpr int kResidentCtas = 2;
// gridDim.y of the rows whose grid has a column a head.
constexpr int kMaxHeads = 65535;

const CudaKernelRow* FindCudaRow(const char* name) {
  const auto table = CudaKernelTable();
  const auto row = std::find_if(table.begin(), table.end(), [&](const CudaKernelRow& candidate) {
    return std::strcmp(candidate.name, name) == 0;
  });
  return row == table.end() ? nullptr : &*row;
}

bool Serves(const CudaKernelRow& row, const AttentionParams& params) {
  return (row.launch != nullptr || row.launch_naive != nullptr) &&
         (row.data_types & TypeBit(params.data_type)) != 0 &&
         params.kv_data_type == params.data_type && params.head_dim >= 1 &&
         params.head_dim <= row.head_dim && params.num_kv_heads >= 1 &&
         params.num_heads % params.num_kv_heads == 0 && params.num_heads <= kMaxHeads &&
         (RequiredFeatures(params) & ~row.features) == 0;
}

class Layout {
 public:
  std::int64_t Take(std::int64_t bytes) {
    const std::int64_t at = end_;
    end_ += (bytes + kBoundary - 1) / kBoundary * kBoundary;
    return at;
  }
  template <class T>
  std::int64_t Take(const std::vector<T>& values) {
    return Take(static_cast<std::int64_t>(values.size() * sizeof(T)));
  }
  std::int64_t end() const { return end_; }

 private:
  std::int64_t end_ = 0;
};

// Second-level cache of the cards of a compute capability (T4, A100, A10, L4, H200), half of which
// is counted on: the two halves of a large one may hold the same line, and q and o pass through it.
double CacheBytes(int compute_capability) {
  const double mib = compute_capability >= 90   ? 60
                     : compute_capability == 89 ? 48
                     : compute_capability == 86 ? 6
                     : compute_capability >= 80 ? 40
                                                : 4;
  return mib * 1048576 / 2;
}

void LayOutWorkspace(CudaPlanDetail& detail) {
  Layout layout;
  WorkspaceLayout& at = detail.layout;
  at.sequences = layout.Take(detail.sequences);
  at.prefill_tasks = layout.Take(detail.prefill_tasks);
  at.rerun_of = layout.Take(detail.rerun_of);
  at.decode_tasks = layout.Take(detail.decode.tasks);
  at.decode_plans = layout.Take(detail.decode.sequences);
  at.jobs = layout.Take(static_cast<std::int64_t>((detail.inputs.size() + detail.outputs.size()) *
                                                  sizeof(any::ConvertJob)));
  at.tail_order = layout.Take(detail.tail_order);
  at.status = layout.Take(sizeof(CudaLaunchStatus));
  at.flags = layout.Take(detail.flag_words * 4);
  at.upload_end = layout.end();
  at.partial_o = layout.Take(detail.decode.partial_rows * detail.params.head_dim * 4);
  at.partial_state = layout.Take(detail.decode.partial_rows * 8);
  for (auto* copies : {&detail.inputs, &detail.outputs}) {
    for (PlannedCopy& copy : *copies) copy.offset = layout.Take(CopyBytes(detail, copy));
  }
  at.scratch = layout.Take(detail.naive.scratch);
  at.end = layout.end();
}

void AddCopyTraffic(const CudaPlanDetail& detail, KernelCost& cost) {
  for (const auto* copies : {&detail.inputs, &detail.outputs}) {
    for (const PlannedCopy& copy : *copies) {
      const auto bytes = static_cast<double>(CopyBytes(detail, copy));
      cost.expected_read_bytes += bytes;
      cost.expected_write_bytes += bytes;
    }
  }
}

// K and V of contiguous sequences that naive copies to compute them together; AttentionCost counts
// the gather of pages.
void AddGatherTraffic(const CudaPlanDetail& detail, KernelCost& cost) {
  for (const naive::NaiveChunk& chunk : detail.naive.chunks) {
    if (chunk.keys_in_place) continue;
    for (int i = 0; i < chunk.num_sequences; ++i) {
      const auto at = static_cast<std::size_t>(chunk.first_sequence + i);
      const AttentionSequence& sequence = detail.sequences[at];
      if (sequence.kv.page_table != nullptr) continue;
      const double bytes = KvBytes(detail.params, sequence, sequence.kv_length);
      cost.expected_read_bytes += bytes;
      cost.expected_write_bytes += bytes;
    }
  }
}

CudaPlan Finish(std::shared_ptr<CudaPlanDetail> detail, LaunchPlan attention) {
  LayOutWorkspace(*detail);
  CudaPlan plan;
  plan.attention = std::move(attention);
  AddCopyTraffic(*detail, plan.attention.cost);
  AddGatherTraffic(*detail, plan.attention.cost);
  plan.attention.workspace_bytes = detail->layout.end;
  plan.upload_bytes = detail->layout.upload_end;
  plan.status_offset = detail->layout.status;
  plan.detail = std::move(detail);
  return plan;
}

std::shared_ptr<CudaPlanDetail> MakeDetail(const CudaKernelRow& row,
                                           const AttentionParams& params) {
  auto detail = std::make_shared<CudaPlanDetail>();
  detail->row = &row;
  detail->params = params;
  detail->sequences.assign(params.sequences, params.sequences + params.num_sequences);
  detail->params.sequences = nullptr;
  return detail;
}

std::int64_t FlagWords(std::int64_t rows, int num_heads) { return (rows * num_heads + 31) / 32; }

// The exact row's tasks, each with the tile of `first` that holds its rows.
void PlanRerunTasks(const CudaPlanDetail& first, const AttentionParams& params, int block_rows,
                    CudaPlanDetail& rerun) {
  const bool tiled = first.row->block_rows != 0 && !first.prefill_tasks.empty();
  std::vector<std::pair<PrefillTask, std::int32_t>> tiles;
  if (tiled) {
    for (std::size_t i = 0; i < first.prefill_tasks.size(); ++i) {
      tiles.emplace_back(first.prefill_tasks[i], static_cast<std::int32_t>(i));
    }
  } else {
    for (std::int32_t i = 0; i < params.num_sequences; ++i) tiles.push_back({{i, 0}, i});
  }
  for (const auto& [tile, flag] : tiles) {
    const int rows = params.sequences[tile.sequence].query_length;
    const int begin = tiled ? tile.query_tile * first.row->block_rows : 0;
    const int end = tiled ? std::min(begin + first.row->block_rows, rows) : rows;
    // block_rows of the exact row divides the tile of every other one.
    for (int row = begin; row < end; row += block_rows) {
      rerun.prefill_tasks.push_back({tile.sequence, row / block_rows});
      rerun.rerun_of.push_back(flag);
    }
  }
}

}  // namespace

CudaPlan PlanCudaAttention(const KernelRow& row, const AttentionParams& params,
                           const DeviceLimits& limits, const PlanOptions& options) {
  const CudaKernelRow* cuda_row = FindCudaRow(row.name);
  if (cuda_row == nullptr || !Serves(*cuda_row, params)) return {};
  auto detail = MakeDetail(*cuda_row, params);
  LaunchPlan attention;
  attention.row = &row;
  attention.options = options;
  attention.cost = AttentionCost(row, params);
  std::int64_t flag_rows = params.num_sequences;
  if (cuda_row->operation == Operation::kDecode) {
    DecodePlanOptions decode;
    decode.num_multiprocessors = std::max(limits.num_threads, 1);
    decode.block_rows = cuda_row->block_rows;
    decode.forced_splits = options.forced_splits;
    decode.batch_invariant = options.batch_invariant;
    detail->decode = PlanDecode(params, decode);
    attention.num_splits = std::max(detail->decode.max_splits, 1);
  } else if (cuda_row->operation == Operation::kNaive) {
    detail->naive = naive::PlanNaive(params);
  } else {
    const int multiprocessors = std::max(limits.num_threads, 1);
    PrefillPlan prefill = PlanPrefill(params, cuda_row->block_rows, multiprocessors);
    if (cuda_row->operation == Operation::kExact) {  // its grid knows no tail
      prefill.tail_heads = 1;
      std::iota(prefill.tail_order.begin(), prefill.tail_order.end(), 0);
    }
    attention.cost.expected_read_bytes +=
        RereadKvBytes(params, prefill, cuda_row->block_rows, kResidentCtas * multiprocessors,
                      CacheBytes(limits.compute_capability));
    detail->prefill_tasks = std::move(prefill.tasks);
    detail->tail_heads = prefill.tail_heads;
    detail->tail_order = std::move(prefill.tail_order);
    flag_rows = static_cast<std::int64_t>(detail->prefill_tasks.size());
  }
  detail->flag_words = FlagWords(flag_rows, params.num_heads);
  PlanCopies(*cuda_row, params, *detail);
  return Finish(std::move(detail), attention);
}

CudaPlan PlanCudaRerun(const CudaPlan& plan, const AttentionParams& params,
                       const std::byte* workspace) {
  const KernelKey key{Operation::kExact, params.data_type, params.kv_data_type, params.head_dim,
                      RequiredFeatures(params)};
  const DeviceLimits limits{DeviceKind::kCuda, plan.attention.row->first_cc, CpuTarget::kAuto, 1};
  const KernelRow* row = FindKernel(key, limits);
  const CudaKernelRow* cuda_row = row == nullptr ? nullptr : FindCudaRow(row->name);
  if (cuda_row == nullptr) return {};
  auto detail = MakeDetail(*cuda_row, params);
  PlanRerunTasks(*plan.detail, params, cuda_row->block_rows, *detail);
  detail->rerun_flags =
      reinterpret_cast<const std::uint32_t*>(workspace + plan.detail->layout.flags);
  LaunchPlan attention;
  attention.row = row;
  return Finish(std::move(detail), attention);
}

}  // namespace attnd::kernels
