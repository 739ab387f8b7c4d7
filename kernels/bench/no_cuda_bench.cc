#include <stdexcept>

#include "kernels/bench/cuda_bench.h"

namespace attnd::kernels::bench {

int RunCudaBench(const CudaBenchOptions& /*options*/) {
  throw std::runtime_error("this build has no CUDA kernels; configure with -DATTND_CUDA=on");
}

}  // namespace attnd::kernels::bench
