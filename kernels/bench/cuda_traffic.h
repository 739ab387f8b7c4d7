// attnbench --device=cuda --traffic: every CUDA row once on each shape of a grid, beside the bytes
// that the cost model says it moves. A profiler that watches the process sees, in this order and
// with no other kernel of this tree between: ReadAllKernel over a buffer beyond the L2, the launch,
// ReadAllKernel again. The first leaves nothing of the case in the L2, the second writes back what
// the launch left there. scripts/check_hbm_model.sh counts.
#pragma once

#include "kernels/bench/cuda_bench.h"

namespace attnd::kernels::bench {

// Writes one JSON line a launch, in the order of the launches. The exit code.
int RunCudaTraffic(const CudaBenchOptions& options);

}  // namespace attnd::kernels::bench
