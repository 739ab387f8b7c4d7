// The passes over memory that the naive row makes itself, one set a SIMD target: softmax, and
// widening of 16-bit rows.
#pragma once

#include <cstddef>
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

struct NaivePasses {
  NaiveSoftmaxState (*softmax)(const NaiveSoftmaxRow& row);
  // to[i] = FP32 of element i of `count` FP16 or BF16 elements at `from` (any alignment).
  void (*widen)(const std::byte* from, DataType type, int count, float* to);
};
NaivePasses NaivePassesScalar();
NaivePasses NaivePassesAvx2();
NaivePasses NaivePassesAvx512();

}  // namespace attnd::kernels
