// Public interface of the CUDA rows: plan of a launch, the launch on a stream, upkeep of the cache.
// No CUDA header is needed to use it. In a build without CUDA, KernelTable() holds no CUDA row and
// every launch here answers kUnsupported.
//
// Life of a launch, all but the last step asynchronous:
//   1. FindKernel(key, limits) -> row; PrepareCudaRow(*row) once a device, before any launch of it
//   2. PlanCudaAttention(...) -> plan                                  pure host code
//   3. EncodeCudaAttention(plan, params, workspace, upload)            fills plan.upload_bytes of
//      host memory (pinned, or the copy is not asynchronous); `workspace` is the device memory,
//      plan.attention.workspace_bytes at a 256-byte boundary, that the launch will use
//   4. copy the upload to the start of the workspace, on the stream of the launch
//   5. LaunchCudaAttention(plan, workspace, stream)
//   6. when the stream has passed: the CudaLaunchStatus at workspace + plan.status_offset. Pages
//      outside the pool: the answer is void. Non-finite tiles: PlanCudaRerun and steps 3 to 6 again
//      before the answer counts.
// Steps 3 to 5 may be repeated with one plan as long as lengths, options that are set or not, and
// the alignment of addresses stay the same (values and addresses may change): what a CUDA graph
// needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/attention_kernels.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace attnd::kernels {

using CudaStream = CUstream_st*;

// What a launch reports, in device memory.
enum CudaFault : std::uint32_t { kCudaPageOutOfPool = 1U << 0 };
struct CudaLaunchStatus {
  std::uint32_t faults;           // CudaFault bits
  std::uint32_t nonfinite_tiles;  // (tile, head) pairs whose o is not finite
};

struct CudaPlanDetail;  // what the launch itself needs; immutable

struct CudaPlan {
  LaunchPlan attention;  // row, num_splits, workspace_bytes, cost
  std::int64_t upload_bytes = 0;
  std::int64_t status_offset = 0;
  std::shared_ptr<const CudaPlanDetail> detail;
};

// Loads the row's code and sets its attributes on the current device. A naive row also needs
// cuBLAS, which is loaded here: see CudaNaiveFault.
LaunchStatus PrepareCudaRow(const KernelRow& row);

// Why naive rows do not run here (cuBLAS is not installed, or too old); null where they do. Loads
// cuBLAS at the first call.
const char* CudaNaiveFault();

// `params.sequences` is host memory, everything that it points to is device memory. `limits`
// names the multiprocessors in num_threads. A call that the row does not serve, or with more than
// 65535 query heads (a grid dimension), gives a plan whose row is null.
CudaPlan PlanCudaAttention(const KernelRow& row, const AttentionParams& params,
                           const DeviceLimits& limits, const PlanOptions& options);

// The flagged tiles of the finished launch of `plan`, again on the exact row: hidden keys are
// skipped there, never multiplied. `workspace` is the one of that launch and stays as it is until
// the rerun has passed; the rerun has a workspace of its own. Its status has no non-finite tiles.
CudaPlan PlanCudaRerun(const CudaPlan& plan, const AttentionParams& params,
                       const std::byte* workspace);

void EncodeCudaAttention(const CudaPlan& plan, const AttentionParams& params, std::byte* workspace,
                         std::byte* upload);
LaunchStatus LaunchCudaAttention(const CudaPlan& plan, std::byte* workspace, CudaStream stream);

// All steps with memory of its own, reruns included; returns when the answer is complete. For
// tests, benchmarks' checks and self tests.
LaunchResult RunCudaAttention(const KernelRow& row, const AttentionParams& params,
                              const DeviceLimits& limits, const PlanOptions& options,
                              CudaStream stream);

// As LaunchAppend. `params.sequences` is host memory (only num_tokens is read from it), the same
// array lies at `device_sequences`; all pointers in it, inverse_frequencies too, are device memory.
// Faults go to `status`, in device memory, zeroed by the caller.
LaunchStatus LaunchCudaAppend(const AppendParams& params, const AppendSequence* device_sequences,
                              CudaLaunchStatus* status, CudaStream stream);

// The queries of one sequence, to be rotated in place: token i stands at first_position + i.
struct QueryRotation {
  void* q = nullptr;  // q[num_tokens][num_heads][head_dim], contiguous
  std::int32_t num_tokens = 0;
  std::int32_t first_row = 0;  // tokens of all sequences before this one in the array
  std::int64_t first_position = 0;
  RopeParams rope;
};

// RotateQueries for many sequences in one launch. Of `rotations`, host memory, only the counts are
// read; the same array lies at `device_rotations`, and q and the frequencies are device memory.
LaunchStatus LaunchCudaRotateQueries(std::span<const QueryRotation> rotations,
                                     const QueryRotation* device_rotations, DataType type,
                                     int num_heads, int head_dim, CudaStream stream);

// As MergeStates; all pointers, the arrays of pointers too, are device memory.
LaunchStatus LaunchCudaMergeStates(const MergeParams& params, CudaStream stream);

// Measured ceilings of the current device, each a short run (about `seconds`); 0: not measured.
struct CudaCeilings {
  double read_bytes_per_second = 0;  // device memory, a buffer far beyond the L2
  // FP16 with FP32 sums: Turing's instruction, and Ampere's (0 before it).
  double m16n8k8_flops_per_second = 0;
  double m16n8k16_flops_per_second = 0;
};
CudaCeilings MeasureCudaCeilings(double seconds);

}  // namespace attnd::kernels
