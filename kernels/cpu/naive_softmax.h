// The softmax pass of the naive row, one function a SIMD target.
#pragma once

#include <cstdint>

#include "kernels/attention_params.h"
#include "kernels/key_range.h"

namespace attnd::kernels {

// Rows of scores are padded to a multiple of this many keys; 64-byte aligned.
inline constexpr std::int64_t kNaiveKeyGranule = 64;

struct NaiveSoftmaxRow {
  const AttentionSequence* sequence;
  std::int64_t token;  // query row
  int head;
  KeyRange visible;
  std::int64_t padded_keys;  // a multiple of kNaiveKeyGranule
  float* scores;             // raw dot products; overwritten
  // Probabilities of all padded keys, 0 where hidden; not yet divided by their sum.
  void* probabilities;  // FP32 (may be `scores`) or BF16
  bool bf16;
};

struct NaiveSoftmaxState {
  float row_max;  // base 2; -inf: no visible key
  float row_sum;
};

using NaiveSoftmaxFunction = NaiveSoftmaxState (*)(const NaiveSoftmaxRow& row);
NaiveSoftmaxState NaiveSoftmaxScalar(const NaiveSoftmaxRow& row);
NaiveSoftmaxState NaiveSoftmaxAvx2(const NaiveSoftmaxRow& row);
NaiveSoftmaxState NaiveSoftmaxAvx512(const NaiveSoftmaxRow& row);

}  // namespace attnd::kernels
