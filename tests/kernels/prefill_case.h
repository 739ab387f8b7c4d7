// One attention problem for the prefill tests: owns its tensors, gives AttentionParams, and
// computes the float64 answer by its own loop, from the definitions and nothing else.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "kernels/attention_kernels.h"
#include "kernels/attention_params.h"

namespace attnd::kernels {

struct SequenceSpec {
  int query_length = 1;
  int kv_length = 1;
  std::optional<std::int64_t> query_position;  // unset: bottom-right
  std::int64_t key_position = 0;
  bool causal = true;
  std::int64_t window_left = kUnlimitedWindow, window_right = kUnlimitedWindow;
  std::optional<float> scale;  // unset: 1 / sqrt(head_dim)
  float soft_cap = 0;
  bool alibi = false, sinks = false, bias = false;
};

struct CaseSpec {
  DataType type = DataType::kFp32;
  int num_heads = 1, num_kv_heads = 1, head_dim = 64;
  std::vector<SequenceSpec> sequences;
  bool partial = false;
  int page_tokens = 0;  // 0: contiguous
  float amplitude = 1;  // of q and k
  unsigned seed = 1;
};

struct HeadError {
  double relative_l2 = 0;  // of o against the oracle, over one head's finite elements
  double lse = 0;          // largest difference of lse
};

class PrefillCase {
 public:
  explicit PrefillCase(const CaseSpec& spec);

  const AttentionParams& params() const { return params_; }
  // Fills o and lse with NaN, launches, checks that nothing outside o was written.
  LaunchResult Run(CpuTarget target, int num_threads);

  // Element access for poisoning, and for cases with chosen values. key and dim as in
  // AttentionParams; stores round to the type.
  void SetQ(int sequence, int token, int head, int dim, float value);
  void SetK(int sequence, int key, int kv_head, int dim, float value);
  void SetV(int sequence, int key, int kv_head, int dim, float value);
  void SetBias(int sequence, int head, int row, int key, float value);
  // which: 'q', 'k' or 'v'; head is a KV head for k and v.
  float Value(int sequence, char which, int token, int head, int dim) const;
  float O(int sequence, int token, int head, int dim) const;
  float Lse(int sequence, int token, int head) const;

  // Oracle of one row: head_dim values, then lse. Kept until an input changes.
  const std::vector<double>& Oracle(int sequence, int token, int head) const;
  // The same row by an unfused pipeline in the case's type: FP32 scores, probabilities and output
  // rounded to the type.
  std::vector<double> Plain(int sequence, int token, int head) const;
  // The worst head of a sequence. plain: of Plain's values instead of the kernel's.
  HeadError WorstHead(int sequence, bool plain) const;

 private:
  struct Tensors;
  // The free pages, in random order.
  std::vector<std::uint32_t> MakePool(std::mt19937& random);
  void AddSequence(const SequenceSpec& spec, std::vector<std::uint32_t>& free_pages,
                   std::mt19937& random);
  void SetOptions(const SequenceSpec& spec, Tensors& tensors, AttentionSequence& sequence,
                  std::mt19937& random) const;
  void Fill(std::mt19937& random);
  // single: dot products in FP32.
  std::vector<double> Scores(int sequence, int token, int head, bool single) const;

  CaseSpec spec_;
  mutable std::map<std::array<int, 3>, std::vector<double>> oracle_rows_;
  std::vector<std::shared_ptr<Tensors>> tensors_;
  std::vector<std::byte> pool_;
  std::vector<AttentionSequence> sequences_;
  AttentionParams params_;
};

}  // namespace attnd::kernels
