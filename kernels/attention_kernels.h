// Public interface of the kernel library: the table of compiled kernels, the plan of a launch, its
// cost, and the launch itself.
//
// Life of a launch:  FindKernel(key) -> PlanAttention(row, params, ...) -> allocate
// plan.workspace_bytes -> Launch(...). FindKernel, PlanAttention and AttentionCost are pure host
// code. Nothing here allocates device memory, logs or exits. Rows of a CUDA device are planned and
// launched through cuda_kernels.h; Launch refuses them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/attention_params.h"

namespace attnd::kernels {

enum class Operation : std::uint8_t { kPrefill, kDecode, kNaive, kExact, kAppend, kMergeStates };
enum class DeviceKind : std::uint8_t { kCpu, kCuda };

// SIMD targets of the CPU rows, each with the instructions of those before it. kAuto: the fastest
// that this machine has.
enum class CpuTarget : std::uint8_t { kAuto, kScalar, kAvx2, kAvx512, kAvx512Bf16 };
const char* CpuTargetName(CpuTarget target);  // "auto", "scalar", "avx2", "avx512", "avx512_bf16"
bool ParseCpuTarget(const char* name, CpuTarget& target);  // false: no such name
bool CpuTargetSupported(CpuTarget target);                 // by cpuid and OS state
CpuTarget BestCpuTarget();  // the fastest one, not always the last that is supported

// Options as bits: what a call needs, what a row offers.
enum Feature : std::uint32_t {
  kFeatureCausal = 1U << 0,
  kFeatureWindow = 1U << 1,
  kFeatureSoftCap = 1U << 2,
  kFeatureAlibi = 1U << 3,
  kFeatureSinks = 1U << 4,
  kFeatureBias = 1U << 5,
  kFeatureLse = 1U << 6,
  kFeaturePartial = 1U << 7,
  kFeaturePaged = 1U << 8,
  kFeatureRope = 1U << 9,
};

constexpr std::uint32_t TypeBit(DataType type) { return 1U << static_cast<std::uint32_t>(type); }

// What a device can do and how it is used; filled once at start.
struct DeviceLimits {
  DeviceKind kind = DeviceKind::kCpu;
  int compute_capability = 0;  // CUDA: 75, 80, 90
  CpuTarget cpu_target = CpuTarget::kAuto;
  int num_threads = 1;  // CPU worker threads; CUDA: multiprocessors
};

struct KernelKey {
  Operation operation = Operation::kPrefill;
  DataType data_type = DataType::kFp32;
  DataType kv_data_type = DataType::kFp32;
  int head_dim = 0;
  std::uint32_t features = 0;
};

// Exact useful work of one launch, and the bytes it moves through device memory. `min_*` counts
// every operand once; `expected_*` is what this kernel moves (score matrices, gathers, re-reads
// that no cache can hold). Bytes are modelled.
struct KernelCost {
  double flops = 0;
  double min_read_bytes = 0, min_write_bytes = 0;
  double expected_read_bytes = 0, expected_write_bytes = 0;
};

struct PlanOptions {
  bool batch_invariant =
      false;  // splits at absolute multiples of a fixed size, whatever else is in the batch
  int forced_splits = 0;  // 0: chosen by the plan
};

struct KernelRow;

struct LaunchPlan {
  const KernelRow* row = nullptr;
  int num_splits = 1;  // the largest over the batch
  // Decode family: keys of one split, and KV heads that one work item takes together at most.
  std::int64_t split_tokens = 0;
  int kv_heads_per_item = 1;
  int num_threads = 1;  // that the workspace has room for; an executor must not have more
  std::int64_t workspace_bytes = 0;
  KernelCost cost;
  PlanOptions options;
};

// Threads that a CPU launch may use. The library wraps oneTBB behind this so that no caller
// includes it.
class CpuExecutor {
 public:
  // num_threads >= 1, the calling thread included.
  explicit CpuExecutor(int num_threads);
  ~CpuExecutor();
  CpuExecutor(const CpuExecutor&) = delete;
  CpuExecutor& operator=(const CpuExecutor&) = delete;
  int num_threads() const { return num_threads_; }

  struct Arena;
  Arena& arena() { return *arena_; }

 private:
  int num_threads_;
  Arena* arena_;
};

enum class LaunchStatus : std::uint8_t {
  kOk,
  kPageOutOfPool,  // a page table entry lies outside the pool; nothing was read through it
  kUnsupported,    // params ask for what the row does not offer (a caller's bug: FindKernel first)
  kDeviceFault,
};

struct LaunchResult {
  LaunchStatus status = LaunchStatus::kOk;
  std::int64_t exact_reruns = 0;  // (tile, head) pairs that held a non-finite output and were
                                  // computed again on the exact row
};

struct KernelRow {
  const char* name;  // "cpu/prefill_avx512_bf16"; also the `kernel` label of metrics
  Operation operation;
  DeviceKind device;
  int first_cc, last_cc;        // CUDA only
  CpuTarget cpu_target;         // CPU only
  std::uint32_t data_types;     // TypeBit mask for q
  std::uint32_t kv_data_types;  // TypeBit mask for k and v
  int max_head_dim;
  std::uint32_t features;
  // Null for kAppend and kMergeStates, which are called through LaunchAppend and MergeStates, and
  // for every CUDA row.
  LaunchResult (*launch)(const AttentionParams& params, const LaunchPlan& plan,
                         std::byte* workspace, CpuExecutor& executor);
};

// Every compiled kernel; the support matrix.
std::span<const KernelRow> KernelTable();

// First row that serves `key` on the device; null: no such kernel.
const KernelRow* FindKernel(const KernelKey& key, const DeviceLimits& limits);
// By name, for tests, benchmarks and metrics.
const KernelRow* FindKernelByName(const char* name);

// The features that `params` uses (any sequence).
std::uint32_t RequiredFeatures(const AttentionParams& params);

// Query rows x group up to this many are served by the decode family.
inline constexpr int kMaxDecodeRows = 64;

KernelCost AttentionCost(const KernelRow& row, const AttentionParams& params);
LaunchPlan PlanAttention(const KernelRow& row, const AttentionParams& params,
                         const DeviceLimits& limits, const PlanOptions& options);

// Runs to completion on the calling thread and the executor's workers. `workspace` holds
// plan.workspace_bytes, 128-byte aligned.
LaunchResult Launch(const LaunchPlan& plan, const AttentionParams& params, std::byte* workspace,
                    CpuExecutor& executor);

// Writes new rows (rotated if asked) into pages; `layout` and `pool` as in AttentionParams. Rows
// have `source_type` = layout.data_type.
struct AppendParams {
  const AppendSequence* sequences = nullptr;
  std::int32_t num_sequences = 0;
  PageLayout page_layout;
  std::byte* pool = nullptr;
  std::int64_t pool_bytes = 0;
};
KernelCost AppendCost(const AppendParams& params);
LaunchResult LaunchAppend(const AppendParams& params, CpuExecutor& executor);

// q[num_tokens][num_heads][head_dim] rotated in place; token i stands at first_position + i.
void RotateQueries(void* q, DataType type, std::int64_t num_tokens, int num_heads, int head_dim,
                   std::int64_t first_position, const RopeParams& rope);

// Merges `num_parts` partial states of disjoint KV ranges in ascending KV order. o_parts[part] is
// FP32 [rows][head_dim], lse_parts[part] is [rows] (natural log, -inf: empty). sink_logits: one a
// row or null. Writes o in `type` and lse (may be null).
struct MergeParams {
  const float* const* o_parts = nullptr;
  const float* const* lse_parts = nullptr;
  std::int32_t num_parts = 0;
  std::int64_t num_rows = 0;
  std::int32_t head_dim = 0;
  const float* sink_logits = nullptr;  // [num_rows] or null
  DataType type = DataType::kFp32;
  void* o = nullptr;
  float* lse = nullptr;
};
void MergeStates(const MergeParams& params);

// Measured ceilings of this machine with `executor`'s threads, each a short run (about `seconds`):
// FP32 FMA and vdpbf16ps rates of the target in FLOP/s (0: the target lacks it) and read bandwidth
// in bytes/s over a buffer beyond the last-level cache.
struct CpuCeilings {
  double fp32_flops_per_second = 0;
  double bf16_flops_per_second = 0;
  double read_bytes_per_second = 0;
};
CpuCeilings MeasureCpuCeilings(CpuTarget target, CpuExecutor& executor, double seconds);

}  // namespace attnd::kernels
