// The tensors of one benchmark case, and the check that comes before any timing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/attention_kernels.h"
#include "kernels/bench/bench_case.h"

namespace attnd::kernels::bench {

class BenchProblem {
 public:
  explicit BenchProblem(const BenchCase& bench_case);

  const AttentionParams& params() const { return params_; }
  // Relative L2 error of the o that a launch left behind, over a sample of rows computed on the
  // exact row.
  double Error() const;
  // The largest error that Error may give: ten times what a clean pipeline has in FP32, four times
  // in the 16-bit types (docs/kernels/cpu_prefill.md).
  double Tolerance() const;

 private:
  struct FreeAligned {
    void operator()(std::byte* memory) const;
  };
  using Buffer = std::unique_ptr<std::byte[], FreeAligned>;
  static Buffer Allocate(std::int64_t bytes);
  // The page layout, and where the case has pages the pool with the tables. Pages a sequence.
  int MakePages();

  BenchCase case_;
  Buffer q_, k_, v_, pool_, o_;
  std::vector<std::uint32_t> page_table_;
  std::vector<AttentionSequence> sequences_;
  AttentionParams params_;
};

}  // namespace attnd::kernels::bench
