// Against a float64 merge written out here.
#include "client/merge_states.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace attnd::client {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Tensor Fp32(std::vector<std::int64_t> shape, const std::vector<float>& values) {
  return *TensorFromFloats(v1::DATA_TYPE_FP32, std::move(shape), values);
}

TEST(MergeStatesTest, MatchesAFloat64Merge) {
  constexpr int kTokens = 3;
  constexpr int kHeads = 2;
  constexpr int kDim = 5;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<PartialState> parts;
  std::vector<std::vector<float>> o;
  std::vector<std::vector<float>> lse;
  for (int part = 0; part < 3; ++part) {
    o.emplace_back(kTokens * kHeads * kDim);
    lse.emplace_back(kTokens * kHeads);
    for (float& value : o.back()) value = normal(random);
    for (float& value : lse.back()) value = 20 * normal(random);
    parts.push_back({Fp32({kTokens, kHeads, kDim}, o.back()), Fp32({kTokens, kHeads}, lse.back())});
  }
  const std::vector<float> sinks{0.5F, -3.0F};
  const auto merged = MergeStates(parts, sinks, v1::DATA_TYPE_FP32);
  ASSERT_TRUE(merged.ok()) << merged.status();
  const std::vector<float> merged_o = *FloatsFromTensor(merged->o);
  const std::vector<float> merged_lse = *FloatsFromTensor(merged->lse);
  for (int row = 0; row < kTokens * kHeads; ++row) {
    const double sink = sinks[row % kHeads];
    double maximum = sink;
    for (const auto& values : lse) maximum = std::max<double>(maximum, values[row]);
    double sum = std::exp(sink - maximum);
    for (const auto& values : lse) sum += std::exp(values[row] - maximum);
    EXPECT_NEAR(merged_lse[row], maximum + std::log(sum), 1e-5 * (1 + std::abs(maximum)));
    for (int dim = 0; dim < kDim; ++dim) {
      double expected = 0;
      for (int part = 0; part < 3; ++part) {
        expected += std::exp(lse[part][row] - maximum) / sum * o[part][row * kDim + dim];
      }
      // Values of order 1, a few FP32 roundings, and weights whose exponents round at 2^-24 * 60.
      EXPECT_NEAR(merged_o[row * kDim + dim], expected, 2e-5);
    }
  }
}

TEST(MergeStatesTest, EmptyPartsChangeNothingAndEmptyRowsAreZero) {
  const Tensor o = Fp32({2, 1, 2}, {1, 2, 0, 0});
  const Tensor lse = Fp32({2, 1}, {3, -kInfinity});
  // What an empty row holds in o must not matter.
  const Tensor nan = Fp32({2, 1, 2}, {NAN, NAN, NAN, NAN});
  const Tensor empty = Fp32({2, 1}, {-kInfinity, -kInfinity});
  const std::vector<PartialState> parts{{o, lse}, {nan, empty}};
  const auto merged = MergeStates(parts, {}, v1::DATA_TYPE_FP32);
  ASSERT_TRUE(merged.ok());
  EXPECT_EQ(*FloatsFromTensor(merged->o), (std::vector<float>{1, 2, 0, 0}));
  EXPECT_EQ(*FloatsFromTensor(merged->lse), (std::vector<float>{3, -kInfinity}));
}

TEST(MergeStatesTest, ARowWithOnlyASinkIsZeroWithTheSinkAsLse) {
  const std::vector<PartialState> parts{{Fp32({1, 1, 1}, {0}), Fp32({1, 1}, {-kInfinity})}};
  const std::vector<float> sinks{-2.0F};
  const auto merged = MergeStates(parts, sinks, v1::DATA_TYPE_FP32);
  ASSERT_TRUE(merged.ok());
  EXPECT_EQ(*FloatsFromTensor(merged->o), (std::vector<float>{0}));
  EXPECT_EQ(*FloatsFromTensor(merged->lse), (std::vector<float>{-2}));
}

TEST(MergeStatesTest, NanInAPartThatIsNotEmptyPropagates) {
  const std::vector<PartialState> parts{{Fp32({1, 1, 1}, {NAN}), Fp32({1, 1}, {0})},
                                        {Fp32({1, 1, 1}, {1}), Fp32({1, 1}, {0})}};
  const auto merged = MergeStates(parts, {}, v1::DATA_TYPE_FP32);
  ASSERT_TRUE(merged.ok());
  EXPECT_TRUE(std::isnan((*FloatsFromTensor(merged->o))[0]));
}

TEST(MergeStatesTest, NarrowOutputIsTheRoundedOne) {
  const std::vector<PartialState> parts{{Fp32({1, 1, 2}, {1, 0.3F}), Fp32({1, 1}, {0})},
                                        {Fp32({1, 1, 2}, {2, 0.4F}), Fp32({1, 1}, {0})}};
  const auto merged = MergeStates(parts, {}, v1::DATA_TYPE_BF16);
  ASSERT_TRUE(merged.ok());
  EXPECT_EQ(merged->o.data_type, v1::DATA_TYPE_BF16);
  const std::vector<float> values = *FloatsFromTensor(merged->o);
  EXPECT_EQ(values[0], 1.5F);
  EXPECT_NEAR(values[1], 0.35F, 0.35F / 256);
}

TEST(MergeStatesTest, PartsThatDoNotFitAreNamed) {
  const Tensor o = Fp32({1, 2, 1}, {1, 2});
  const Tensor lse = Fp32({1, 2}, {0, 0});
  const auto message = [](const std::vector<PartialState>& parts, std::vector<float> sinks = {},
                          v1::DataType type = v1::DATA_TYPE_FP32) {
    const auto merged = MergeStates(parts, sinks, type);
    EXPECT_EQ(merged.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(merged.status().message());
  };
  EXPECT_NE(message({}).find("parts"), std::string::npos);
  EXPECT_NE(message({{o, lse}, {o, Fp32({2, 1}, {0, 0})}}).find("parts[1].lse"), std::string::npos);
  EXPECT_NE(message({{o, lse}, {Fp32({1, 1, 1}, {0}), lse}}).find("parts[1].o"), std::string::npos);
  EXPECT_NE(
      message({{*TensorFromFloats(v1::DATA_TYPE_BF16, {1, 2, 1}, std::vector<float>{1, 2}), lse}})
          .find("parts[0].o"),
      std::string::npos);
  EXPECT_NE(message({{o, lse}}, {1, 2, 3}).find("sink_logits"), std::string::npos);
  EXPECT_NE(message({{o, lse}}, {}, v1::DATA_TYPE_INT8).find("type"), std::string::npos);
}

}  // namespace
}  // namespace attnd::client
