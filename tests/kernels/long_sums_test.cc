// Rounding of sums over many keys: FP32 rows against a pipeline that sums as SIMD libraries do.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/kernels/every_row.h"
#include "tests/support/random_tensors.h"
#include "tests/support/tensor_compare.h"

namespace attnd {
namespace {

// Products of a and b (stride b_stride), each of 16 lanes summed apart, then the lanes in pairs.
float LanesDot(const float* a, const float* b, std::int64_t n, std::int64_t b_stride) {
  constexpr int kLanes = 16;
  float lanes[kLanes] = {};
  for (std::int64_t i = 0; i < n; ++i) {
    lanes[i % kLanes] = std::fma(a[i], b[i * b_stride], lanes[i % kLanes]);
  }
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

// Scores, softmax, probabilities times V, one row after the other, in FP32.
std::vector<double> LibraryPipeline(const ProblemShape& shape, const ProblemSequence& sequence) {
  const std::int64_t kv_stride = std::int64_t{shape.num_kv_heads} * shape.head_dim;
  const int group = shape.num_heads / shape.num_kv_heads;
  const float scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
  const std::vector<float> ones(sequence.kv_length, 1.0F);
  std::vector<float> p(sequence.kv_length);
  std::vector<double> o;
  for (int token = 0; token < sequence.query_length; ++token) {
    const std::int64_t keys = sequence.kv_length - sequence.query_length + token + 1;
    for (int head = 0; head < shape.num_heads; ++head) {
      const std::int64_t offset = std::int64_t{head / group} * shape.head_dim;
      const float* q = &sequence.q[(std::int64_t{token} * shape.num_heads + head) * shape.head_dim];
      float largest = -HUGE_VALF;
      for (std::int64_t key = 0; key < keys; ++key) {
        p[key] = scale * LanesDot(q, &sequence.k[key * kv_stride + offset], shape.head_dim, 1);
        largest = std::fmax(largest, p[key]);
      }
      for (std::int64_t key = 0; key < keys; ++key) p[key] = std::exp(p[key] - largest);
      const float sum = LanesDot(p.data(), ones.data(), keys, 1);
      for (std::int64_t key = 0; key < keys; ++key) p[key] /= sum;
      for (int dim = 0; dim < shape.head_dim; ++dim) {
        o.push_back(LanesDot(p.data(), &sequence.v[offset + dim], keys, kv_stride));
      }
    }
  }
  return o;
}

TEST(LongSumsTest, ManyKeysRoundNoWorseThanTwiceALibrarysSums) {
  struct Case {
    int query_length, kv_length, num_heads, num_kv_heads, head_dim;
    double amplitude;
  };
  for (const Case& c : {Case{1, 5000, 8, 2, 128, 1.7}, Case{1, 5000, 8, 2, 128, 3.5},
                        Case{16, 8000, 2, 2, 64, 1.7}, Case{1, 20000, 2, 2, 64, 1.7}}) {
    const ProblemShape shape{
        .num_heads = c.num_heads, .num_kv_heads = c.num_kv_heads, .head_dim = c.head_dim};
    ProblemSequence sequence = SeededSequence(shape, c.query_length, c.kv_length, 71, 1);
    for (float& value : sequence.q) value *= static_cast<float>(c.amplitude);
    for (float& value : sequence.k) value *= static_cast<float>(c.amplitude);
    sequence.causal = true;
    AttentionProblem problem(shape, {sequence});
    const std::vector<double>& expected = problem.Reference(0).o;
    const TensorError library = CompareTensors(LibraryPipeline(shape, sequence), expected, 0);
    for (const kernels::KernelRow* row : AttentionRows(problem)) {
      if (row->operation == kernels::Operation::kNaive) continue;  // the library is not ours
      ASSERT_EQ(problem.Run(*row).status, kernels::LaunchStatus::kOk);
      const TensorError error = CompareTensors(problem.Output(0).o, expected, 0);
      EXPECT_LE(error.relative_l2, 2 * library.relative_l2)
          << row->name << ": " << c.query_length << " x " << c.kv_length << ", head_dim "
          << c.head_dim << ", amplitude " << c.amplitude;
      EXPECT_LE(error.max_absolute, 3 * library.max_absolute) << row->name;
    }
  }
}

}  // namespace
}  // namespace attnd
