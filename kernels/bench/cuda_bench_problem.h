// The tensors of one CUDA benchmark case on the device: several sets where one would fit the L2.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/bench/cuda_bench_case.h"
#include "kernels/cuda_kernels.h"

namespace attnd::kernels::bench {

struct FreeDevice {
  void operator()(std::byte* memory) const { cudaFree(memory); }
};
using DeviceBytes = std::unique_ptr<std::byte, FreeDevice>;
// Throws std::runtime_error where there is no memory.
DeviceBytes AllocateDevice(std::int64_t bytes);
// Throws std::runtime_error naming `what` where `error` is one.
void CheckCuda(cudaError_t error, const char* what);
DeviceLimits CurrentCard();

class CudaBenchProblem {
 public:
  // max_sets: no more input sets than this.
  explicit CudaBenchProblem(const CudaBenchCase& bench_case, int max_sets = kMaxSets);
  static constexpr int kMaxSets = 8;
  int num_sets() const { return static_cast<int>(sets_.size()); }
  const AttentionParams& params(int set) const {
    return sets_[static_cast<std::size_t>(set)].params;
  }
  // Relative L2 error of the o of set 0: the last query rows of the first and the last sequence
  // against the exact row. Throws where that row fails.
  double Error() const;
  double Tolerance() const;

 private:
  struct Set {
    DeviceBytes q, k, v, o, page_table;
    std::vector<AttentionSequence> sequences;
    AttentionParams params;
  };
  Set MakeSet(int index) const;
  // The pool and a shuffled page table; the pages of one sequence.
  std::int64_t AddPages(Set& set, int index) const;

  CudaBenchCase case_;
  std::vector<Set> sets_;
};

}  // namespace attnd::kernels::bench
