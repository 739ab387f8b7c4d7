// Naive attention on the CPU: the honest comparison. Three passes over memory with a barrier after
// each: scores = q k^T over the full query x key rectangle in FP32, one softmax pass that reads
// each score once and writes probabilities, o = p v. The products are library calls, each on one
// thread for a block of query rows, all threads busy: OpenBLAS sgemm for FP32 and for FP16 widened
// first (oneDNN where OpenBLAS does not know the processor), oneDNN for BF16 (probabilities in
// BF16). Pages are gathered into contiguous memory first. The libraries are loaded when they are
// first needed (naive_gemm.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention_kernels.h"

namespace attnd::kernels {

// Scores and probabilities of as many sequences as are worked on at a time (at least one, whatever
// its size), the gathered K and V, and scratch of `num_threads` threads.
std::int64_t NaiveWorkspaceBytes(const AttentionParams& params, int num_threads);

// kUnsupported where there is a GemmFault().
LaunchResult LaunchNaive(const AttentionParams& params, const LaunchPlan& plan,
                         std::byte* workspace, CpuExecutor& executor);

}  // namespace attnd::kernels
