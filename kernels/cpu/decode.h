// Fused decode on the CPU: few query rows against a long cache, one launch function a SIMD target.
//
// Algorithm  One work item owns (sequence, KV head, split of the keys). It streams its K and V
// once,
//            in tiles of kDecodeTileKeys keys, for all query rows of the group, and keeps (row_max,
//            row_sum, accumulator) per row. Splits are merged in ascending order by the same base-2
//            maxima. Derivation and figures: docs/kernels/cpu_decode.md.
// Limits     Any number of query rows is computed, in blocks of kMaxDecodeRows that each read K and
//            V again; the family is meant for one block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention_kernels.h"

namespace attnd::kernels {

// Scratch of `num_threads` threads plus the partial states of split sequences.
std::int64_t DecodeWorkspaceBytes(const AttentionParams& params, const LaunchPlan& plan,
                                  int num_threads);

// Each needs a machine with its target; Avx512Bf16 takes BF16 only.
LaunchResult LaunchDecodeAvx2(const AttentionParams& params, const LaunchPlan& plan,
                              std::byte* workspace, CpuExecutor& executor);
LaunchResult LaunchDecodeAvx512(const AttentionParams& params, const LaunchPlan& plan,
                                std::byte* workspace, CpuExecutor& executor);
LaunchResult LaunchDecodeAvx512Bf16(const AttentionParams& params, const LaunchPlan& plan,
                                    std::byte* workspace, CpuExecutor& executor);

}  // namespace attnd::kernels
