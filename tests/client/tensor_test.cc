#include "client/tensor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace attnd::client {
namespace {

TEST(TensorTest, BytesAreShapeTimesElementSize) {
  EXPECT_EQ(*TensorBytes(v1::DATA_TYPE_FP32, std::vector<std::int64_t>{2, 3, 4}), 96);
  EXPECT_EQ(*TensorBytes(v1::DATA_TYPE_BF16, std::vector<std::int64_t>{5}), 10);
  EXPECT_EQ(*TensorBytes(v1::DATA_TYPE_INT8, std::vector<std::int64_t>{}), 1);
  EXPECT_EQ(*TensorBytes(v1::DATA_TYPE_FP16, std::vector<std::int64_t>{0, 1LL << 62, 1LL << 62}),
            0);
}

TEST(TensorTest, NegativeOrOverflowingShapesAreRefused) {
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{-1, 8},
                                                 {2, -1},
                                                 {kMin, 1},
                                                 {1LL << 33, 1LL << 31},
                                                 {1LL << 62},
                                                 {0, -1}}) {
    EXPECT_EQ(TensorBytes(v1::DATA_TYPE_FP32, shape).status().code(),
              absl::StatusCode::kInvalidArgument)
        << shape[0];
  }
  EXPECT_FALSE(TensorBytes(v1::DATA_TYPE_UNSPECIFIED, std::vector<std::int64_t>{1}).ok());
}

TEST(TensorTest, FloatsSurviveARoundTripInEveryType) {
  const std::vector<float> values{0, 1, -2, 0.5F, 96, -0.25F};
  for (const auto type : {v1::DATA_TYPE_FP32, v1::DATA_TYPE_FP16, v1::DATA_TYPE_BF16}) {
    const auto tensor = TensorFromFloats(type, {2, 3}, values);
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_EQ(tensor->size_bytes, 6 * ElementBytes(type));
    EXPECT_EQ(*FloatsFromTensor(*tensor), values);
  }
}

TEST(TensorTest, ValuesThatDoNotFillTheShapeAreRefused) {
  const std::vector<float> values(5);
  EXPECT_FALSE(TensorFromFloats(v1::DATA_TYPE_FP32, {2, 3}, values).ok());
  Tensor tensor = *TensorFromFloats(v1::DATA_TYPE_FP32, {5}, values);
  tensor.shape = {6};
  EXPECT_FALSE(FloatsFromTensor(tensor).ok());
}

TEST(TensorTest, TypeNamesParseBack) {
  for (const auto type : {v1::DATA_TYPE_FP32, v1::DATA_TYPE_FP16, v1::DATA_TYPE_BF16,
                          v1::DATA_TYPE_INT8, v1::DATA_TYPE_FP8_E4M3}) {
    EXPECT_EQ(*ParseDataType(DataTypeName(type)), type);
  }
  EXPECT_FALSE(ParseDataType("float").ok());
}

}  // namespace
}  // namespace attnd::client
