// Fused prefill on the CPU: FlashAttention tiling with an online softmax, one launch function a
// SIMD target. The score matrix never exists; what a launch needs beside its tensors is a fixed
// amount a thread.
//
// Derivation, tile shapes and measurements: docs/kernels/cpu_prefill.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention_kernels.h"
#include "kernels/attention_params.h"

namespace attnd::kernels {

// Scratch of a launch on `target` (kAvx2, kAvx512 or kAvx512Bf16); independent of every sequence
// length.
std::int64_t PrefillWorkspaceBytes(const AttentionParams& params, CpuTarget target,
                                   int num_threads);

// Each runs to completion. Requires: the machine has the target; data_type and kv_data_type are
// equal and FP32, FP16 or BF16 (Avx512Bf16: BF16 only); head_dim in [1, kMaxHeadDim]; `workspace`
// as PrefillWorkspaceBytes, 128-byte aligned; page ids have been checked (Launch does).
// kUnsupported: types or head_dim that the function does not serve.
LaunchResult LaunchPrefillAvx2(const AttentionParams& params, const LaunchPlan& plan,
                               std::byte* workspace, CpuExecutor& executor);
LaunchResult LaunchPrefillAvx512(const AttentionParams& params, const LaunchPlan& plan,
                                 std::byte* workspace, CpuExecutor& executor);
LaunchResult LaunchPrefillAvx512Bf16(const AttentionParams& params, const LaunchPlan& plan,
                                     std::byte* workspace, CpuExecutor& executor);

}  // namespace attnd::kernels
