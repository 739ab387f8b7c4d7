// The exact row: scalar attention that reads visible keys only and never multiplies by a hidden
// one, for every type and option. Tile kernels call it again for rows whose result was not finite
// (a hidden NaN may have met a zero probability there); it is also a kernel row of its own, the
// last resort of machines without AVX2.
#pragma once

#include <cstddef>

#include "kernels/attention_kernels.h"

namespace attnd::kernels {

// Writes o and lse (where wanted) of rows [row_begin, row_end) of one head of one sequence.
// Dot products, softmax and sums in double, scores rounded to FP32. Page ids must have been
// checked. Reads and writes nothing else; threads may run it on disjoint rows at the same time.
void ExactRows(const AttentionParams& params, int sequence, int head, int row_begin, int row_end);

// The row "cpu/exact".
LaunchResult LaunchExact(const AttentionParams& params, const LaunchPlan& plan,
                         std::byte* workspace, CpuExecutor& executor);

}  // namespace attnd::kernels
