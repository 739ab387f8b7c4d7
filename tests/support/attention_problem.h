// One attention launch for tests: owns tensors, pages and outputs, all hostile (unused cache slots
// and outputs hold NaN, unused page table entries are invalid, outputs lie between guard bytes),
// and knows the float64 answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/attention_kernels.h"
#include "kernels/reference/attention_reference.h"
#include "tests/support/plain_attention.h"

namespace attnd {

struct ProblemShape {
  kernels::DataType type = kernels::DataType::kFp32;
  int num_heads = 1, num_kv_heads = 1, head_dim = 64;
  bool partial = false;
  int page_tokens = 0;          // 0: contiguous K and V
  std::uint64_t page_seed = 1;  // order of the pages in the pool
  int row_padding = 0;          // contiguous: NaN elements between rows of q, k and v
  bool heads_first = false;     // contiguous: k and v lie as [head][token][dim]
};

struct ProblemSequence {
  int query_length = 1;
  std::int64_t kv_length = 1;
  std::vector<float> q, k, v;                  // [token][head][dim]
  std::optional<std::int64_t> query_position;  // unset: bottom-right of kv_length
  std::int64_t key_position = 0;
  bool causal = false;
  std::int64_t window_left = kernels::kUnlimitedWindow, window_right = kernels::kUnlimitedWindow;
  std::optional<float> scale;  // unset: 1 / sqrt(head_dim)
  float soft_cap = 0;
  std::vector<float> alibi_slopes, sink_logits;  // one a query head, or none
  std::vector<float> bias;                       // [1 or num_heads][query_length][kv_length]
};

// q, k, v as "seed s" of the case list: generators 1000 s + 1, 2 and 3, v with amplitude 1.
ProblemSequence SeededSequence(const ProblemShape& shape, int query_length, std::int64_t kv_length,
                               std::uint64_t seed, double amplitude);

struct RunSettings {
  int num_threads = 2;
  kernels::PlanOptions plan;
};

// Memory that a launch reads or writes, guards of outputs included.
struct MemoryRegion {
  std::byte* data;
  std::size_t bytes;
  bool written;
};

class AttentionProblem {
 public:
  AttentionProblem(const ProblemShape& shape, std::vector<ProblemSequence> sequences);
  ~AttentionProblem();
  AttentionProblem(const AttentionProblem&) = delete;
  AttentionProblem& operator=(const AttentionProblem&) = delete;

  const ProblemShape& shape() const { return shape_; }
  const kernels::AttentionParams& params() const { return params_; }
  int num_sequences() const { return params_.num_sequences; }

  // Fills outputs with NaN and launches. The plan of the last run is kept.
  kernels::LaunchResult Run(const kernels::KernelRow& row, const RunSettings& settings = {});
  const kernels::LaunchPlan& plan() const { return plan_; }

  // Every region that the params point to.
  std::vector<MemoryRegion> Regions();

  ProblemOutput Output(int sequence) const;
  std::vector<std::byte> OutputBits(int sequence) const;  // o then lse
  bool GuardsIntact() const;

  const kernels::ReferenceOutput& Reference(int sequence);
  const ProblemOutput& Plain(int sequence);
  double MaxValue(int sequence) const;  // largest finite |v|

  // Overwrites the cached element, in pages or contiguous memory; forgets computed answers.
  void SetKey(int sequence, std::int64_t token, int kv_head, int dim, float value);
  void SetValue(int sequence, std::int64_t token, int kv_head, int dim, float value);
  // Every cache slot that no token uses (paged only).
  void FillUnusedSlots(float value);
  // The page table of a sequence, exactly ceil(kv_length / page_tokens) valid entries first.
  std::vector<std::uint32_t>& PageTable(int sequence);

 private:
  struct Buffers;
  void BuildQueries(int index);
  void SetOptions(int index);
  void BuildPool();
  void ForgetAnswers(int sequence);
  void BuildContiguous(int sequence);
  std::byte* CacheElement(int sequence, std::int64_t token, int kv_head, int dim, bool value);

  ProblemShape shape_;
  std::vector<ProblemSequence> specs_;
  std::vector<std::unique_ptr<Buffers>> buffers_;
  std::vector<std::byte> pool_;
  std::vector<kernels::AttentionSequence> sequences_;
  kernels::AttentionParams params_;
  kernels::LaunchPlan plan_;
};

// The device under test: cpu_rows.cc or cuda_rows.cc, whichever the test is linked with.
//
// Rows of the table that serve the problem there: every SIMD target that the machine has, or every
// CUDA row and head_dim bucket.
std::vector<const kernels::KernelRow*> AttentionRows(const AttentionProblem& problem);
// One launch of the params, whose outputs hold NaN, reruns included. `plan` is the one that ran.
kernels::LaunchResult LaunchRow(AttentionProblem& problem, const kernels::KernelRow& row,
                                const RunSettings& settings, kernels::LaunchPlan& plan);

// Runs `row` and checks every sequence against float64: classes of NaN and infinity, error at most
// twice the plain pipeline's plus the floor, guards. Empty: right; else what is wrong.
std::string CheckRow(AttentionProblem& problem, const kernels::KernelRow& row,
                     const RunSettings& settings = {});

// The same check for an output computed elsewhere (a server's answer) of one sequence.
std::string CheckOutput(AttentionProblem& problem, int sequence, const ProblemOutput& got);

const char* TypeName(kernels::DataType type);
// Unit roundoff: half a unit in the last place of 1.
double UnitRoundoff(kernels::DataType type);

}  // namespace attnd
