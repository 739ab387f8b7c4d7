// The shapes that attnbench --device=cuda walks, and who else computes each.
#pragma once

#include <string>
#include <vector>

#include "kernels/bench/bench_case.h"

namespace attnd::kernels::bench {

struct CudaBenchCase {
  BenchCase shape;
  std::string arch;                // folder of the row: "sm80", "sm75" or "naive"
  int graph_launches = 1;          // launches of one graph replay
  bool with_naive = false;         // time our naive row too
  std::vector<std::string> peers;  // back ends of kernels/bench/peers/torch_cuda_sdpa.py

  // "sm80/prefill/bf16/8x2048/h16-16/d128/causal"; decode ends with its page size, "/p16".
  std::string Name() const;
};

std::vector<CudaBenchCase> AllCudaCases();

}  // namespace attnd::kernels::bench
