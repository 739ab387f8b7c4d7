// The table of compiled kernels, and what walks it: lookup, plan, launch.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "kernels/attention_kernels.h"
#include "kernels/cpu/decode.h"
#include "kernels/cpu/exact.h"
#include "kernels/cpu/naive.h"
#include "kernels/cpu/prefill.h"
#include "kernels/cuda/cuda_rows.h"
#include "kernels/cuda_kernels.h"
#include "kernels/launch_plan.h"
#include "kernels/page_check.h"

namespace attnd::kernels {
namespace {

constexpr std::uint32_t kFloatTypes =
    TypeBit(DataType::kFp32) | TypeBit(DataType::kFp16) | TypeBit(DataType::kBf16);

constexpr std::uint32_t kAllAttention = kFeatureCausal | kFeatureWindow | kFeatureSoftCap |
                                        kFeatureAlibi | kFeatureSinks | kFeatureBias | kFeatureLse |
                                        kFeaturePartial | kFeaturePaged;

using LaunchFunction = LaunchResult (*)(const AttentionParams&, const LaunchPlan&, std::byte*,
                                        CpuExecutor&);

constexpr KernelRow CpuRow(const char* name, Operation operation, CpuTarget target,
                           std::uint32_t types, std::uint32_t features, LaunchFunction launch) {
  return {name,  operation, DeviceKind::kCpu, 0,        0,     target,
          types, types,     kMaxHeadDim,      features, launch};
}

// Of one operation the fastest comes first: FindKernel takes the first that the target can run.
constexpr std::array kCpuTable = {
    CpuRow("cpu/prefill_avx512_bf16", Operation::kPrefill, CpuTarget::kAvx512Bf16,
           TypeBit(DataType::kBf16), kAllAttention, &LaunchPrefillAvx512Bf16),
    CpuRow("cpu/prefill_avx512", Operation::kPrefill, CpuTarget::kAvx512, kFloatTypes,
           kAllAttention, &LaunchPrefillAvx512),
    CpuRow("cpu/prefill_avx2", Operation::kPrefill, CpuTarget::kAvx2, kFloatTypes, kAllAttention,
           &LaunchPrefillAvx2),
    CpuRow("cpu/decode_avx512_bf16", Operation::kDecode, CpuTarget::kAvx512Bf16,
           TypeBit(DataType::kBf16), kAllAttention, &LaunchDecodeAvx512Bf16),
    CpuRow("cpu/decode_avx512", Operation::kDecode, CpuTarget::kAvx512, kFloatTypes, kAllAttention,
           &LaunchDecodeAvx512),
    CpuRow("cpu/decode_avx2", Operation::kDecode, CpuTarget::kAvx2, kFloatTypes, kAllAttention,
           &LaunchDecodeAvx2),
    CpuRow("cpu/naive_fp32", Operation::kNaive, CpuTarget::kScalar, TypeBit(DataType::kFp32),
           kAllAttention, &LaunchNaive),
    CpuRow("cpu/naive_fp16", Operation::kNaive, CpuTarget::kScalar, TypeBit(DataType::kFp16),
           kAllAttention, &LaunchNaive),
    CpuRow("cpu/naive_bf16", Operation::kNaive, CpuTarget::kScalar, TypeBit(DataType::kBf16),
           kAllAttention, &LaunchNaive),
    CpuRow("cpu/exact", Operation::kExact, CpuTarget::kScalar, kFloatTypes, kAllAttention,
           &LaunchExact),
    CpuRow("cpu/append", Operation::kAppend, CpuTarget::kScalar, kFloatTypes,
           kFeaturePaged | kFeatureRope, nullptr),
    CpuRow("cpu/merge_states", Operation::kMergeStates, CpuTarget::kScalar, kFloatTypes,
           kFeatureSinks | kFeatureLse, nullptr),
};

const std::vector<KernelRow>& Table() {
  static const std::vector<KernelRow> table = [] {
    std::vector<KernelRow> rows(kCpuTable.begin(), kCpuTable.end());
    rows.insert(rows.end(), CudaRows().begin(), CudaRows().end());
    return rows;
  }();
  return table;
}

bool Serves(const KernelRow& row, Operation operation, const KernelKey& key,
            const DeviceLimits& limits) {
  if (row.operation != operation || row.device != limits.kind) return false;
  if (row.device == DeviceKind::kCuda) {
    if (limits.compute_capability < row.first_cc || limits.compute_capability > row.last_cc) {
      return false;
    }
  } else {
    // A forced target chooses among what the machine has; it never adds to it.
    const CpuTarget target =
        limits.cpu_target == CpuTarget::kAuto ? BestCpuTarget() : limits.cpu_target;
    if (row.cpu_target > target || !CpuTargetSupported(row.cpu_target)) return false;
  }
  // Pairs of types: the same one twice is all that is compiled.
  return key.kv_data_type == key.data_type && (row.data_types & TypeBit(key.data_type)) != 0 &&
         (row.kv_data_types & TypeBit(key.kv_data_type)) != 0 && key.head_dim >= 1 &&
         key.head_dim <= row.max_head_dim && (key.features & ~row.features) == 0;
}

const KernelRow* FindOperation(Operation operation, const KernelKey& key,
                               const DeviceLimits& limits) {
  const std::vector<KernelRow>& table = Table();
  const auto row = std::find_if(table.begin(), table.end(), [&](const KernelRow& candidate) {
    return Serves(candidate, operation, key, limits);
  });
  return row == table.end() ? nullptr : &*row;
}

void PlanDecode(const AttentionParams& params, LaunchPlan& plan) {
  plan.split_tokens = ChooseSplitTokens(params, plan.num_threads, plan.options);
  for (int i = 0; i < params.num_sequences; ++i) {
    plan.num_splits =
        std::max(plan.num_splits,
                 SplitSequence(params.sequences[i], plan.split_tokens, plan.options).num_splits);
  }
  plan.kv_heads_per_item =
      plan.num_threads == 1
          ? params.num_kv_heads
          : ChooseHeadsPerItem(params, plan.split_tokens, plan.num_threads, plan.options);
  plan.workspace_bytes = DecodeWorkspaceBytes(params, plan, plan.num_threads);
}

bool SequenceUsesWindow(const AttentionSequence& sequence) {
  return sequence.window_left != kUnlimitedWindow ||
         (sequence.window_right != kUnlimitedWindow && !sequence.causal);
}

bool PagesValid(const AttentionParams& params) {
  for (int i = 0; i < params.num_sequences; ++i) {
    const AttentionSequence& sequence = params.sequences[i];
    if (sequence.kv.page_table == nullptr) continue;
    const std::int64_t page_tokens = params.page_layout.page_tokens;
    const std::int64_t pages = (sequence.kv_length + page_tokens - 1) / page_tokens;
    if (!PagesInsidePool(params.page_layout, params.pool_bytes, sequence.kv.page_table, 0, pages)) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::span<const KernelRow> KernelTable() { return Table(); }

const KernelRow* FindKernel(const KernelKey& key, const DeviceLimits& limits) {
  const KernelRow* row = FindOperation(key.operation, key, limits);
  const bool fused = key.operation == Operation::kPrefill || key.operation == Operation::kDecode;
  if (row == nullptr && fused) row = FindOperation(Operation::kExact, key, limits);
  return row;
}

const KernelRow* FindKernelByName(const char* name) {
  const std::vector<KernelRow>& table = Table();
  const auto row = std::find_if(table.begin(), table.end(), [&](const KernelRow& candidate) {
    return std::strcmp(candidate.name, name) == 0;
  });
  return row == table.end() ? nullptr : &*row;
}

std::uint32_t RequiredFeatures(const AttentionParams& params) {
  std::uint32_t features = params.partial ? std::uint32_t{kFeaturePartial} : 0U;
  for (int i = 0; i < params.num_sequences; ++i) {
    const AttentionSequence& sequence = params.sequences[i];
    if (sequence.causal) features |= kFeatureCausal;
    if (SequenceUsesWindow(sequence)) features |= kFeatureWindow;
    if (sequence.logits_soft_cap > 0) features |= kFeatureSoftCap;
    if (sequence.alibi_slopes != nullptr) features |= kFeatureAlibi;
    if (sequence.sink_logits != nullptr && !params.partial) features |= kFeatureSinks;
    if (sequence.bias != nullptr) features |= kFeatureBias;
    if (sequence.lse != nullptr) features |= kFeatureLse;
    if (sequence.kv.page_table != nullptr) features |= kFeaturePaged;
  }
  return features;
}

LaunchPlan PlanAttention(const KernelRow& row, const AttentionParams& params,
                         const DeviceLimits& limits, const PlanOptions& options) {
  if (row.device == DeviceKind::kCuda) {
    return PlanCudaAttention(row, params, limits, options).attention;
  }
  LaunchPlan plan;
  plan.row = &row;
  plan.options = options;
  plan.cost = AttentionCost(row, params);
  plan.num_threads = std::max(1, limits.num_threads);
  if (row.operation == Operation::kDecode) PlanDecode(params, plan);
  if (row.operation == Operation::kPrefill) {
    plan.workspace_bytes = PrefillWorkspaceBytes(params, row.cpu_target, plan.num_threads);
  }
  if (row.operation == Operation::kNaive) {
    plan.workspace_bytes = NaiveWorkspaceBytes(params, plan.num_threads);
  }
  return plan;
}

LaunchResult Launch(const LaunchPlan& plan, const AttentionParams& params, std::byte* workspace,
                    CpuExecutor& executor) {
  const KernelRow* row = plan.row;
  if (row == nullptr || row->launch == nullptr) return {LaunchStatus::kUnsupported, 0};
  const DeviceLimits any{row->device, row->first_cc, row->cpu_target, executor.num_threads()};
  const KernelKey key{row->operation, params.data_type, params.kv_data_type, params.head_dim,
                      RequiredFeatures(params)};
  if (!Serves(*row, row->operation, key, any) || executor.num_threads() > plan.num_threads ||
      params.num_kv_heads < 1 || params.num_heads % params.num_kv_heads != 0) {
    return {LaunchStatus::kUnsupported, 0};
  }
  if (!PagesValid(params)) return {LaunchStatus::kPageOutOfPool, 0};
  return row->launch(params, plan, workspace, executor);
}

}  // namespace attnd::kernels
