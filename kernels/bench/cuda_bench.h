// attnbench --device=cuda: our rows and PyTorch's back ends by CUDA-graph replay, in turn.
#pragma once

#include <string>

#include "kernels/bench/bench_rounds.h"

namespace attnd::kernels::bench {

struct CudaBenchOptions {
  std::string filter, json_file, python, peer_script, command;
  bool peers = false, list = false, ceilings_only = false, traffic = false;
  double ceiling_seconds = 0.5;
  MeasureOptions measure;
};

// The exit code. Throws std::runtime_error where there is no device, or the build has no CUDA.
int RunCudaBench(const CudaBenchOptions& options);

}  // namespace attnd::kernels::bench
