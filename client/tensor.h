// A tensor of a request or a reply: type, shape and shared bytes (row-major, contiguous,
// little-endian).
//
// The bytes are shared, never copied on the way to the socket: gRPC keeps its own reference until
// they are written, which after a cancelled or expired call may be later than the call's end. So
// the memory belongs to the shared_ptr; wrap memory of your own with a deleter that knows when it
// may go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "attnd/v1/attention.pb.h"

namespace attnd::client {

struct Tensor {
  v1::DataType data_type = v1::DATA_TYPE_UNSPECIFIED;  // UNSPECIFIED: the tensor is absent
  std::vector<std::int64_t> shape;
  std::shared_ptr<const std::byte> data;  // size_bytes of them; may be null when size_bytes is 0
  std::int64_t size_bytes = 0;

  bool present() const { return data_type != v1::DATA_TYPE_UNSPECIFIED; }
};

// Bytes of one element; 0 for a type that is not known.
int ElementBytes(v1::DataType type);

// "fp32", "fp16", "bf16", "int8", "fp8_e4m3"; "unspecified" otherwise.
std::string_view DataTypeName(v1::DataType type);
// INVALID_ARGUMENT names the text and the accepted ones.
absl::StatusOr<v1::DataType> ParseDataType(std::string_view name);

// Bytes of a tensor. INVALID_ARGUMENT: unknown type, negative dimension, or a product beyond int64.
absl::StatusOr<std::int64_t> TensorBytes(v1::DataType type, std::span<const std::int64_t> shape);

// Uninitialised memory, 64-byte aligned.
std::shared_ptr<std::byte> AllocateBytes(std::int64_t size_bytes);

// A tensor with these values, rounded to `type` (FP32, FP16 or BF16); values.size() is the shape's
// product. INVALID_ARGUMENT otherwise.
absl::StatusOr<Tensor> TensorFromFloats(v1::DataType type, std::vector<std::int64_t> shape,
                                        std::span<const float> values);

// The values of an FP32, FP16 or BF16 tensor. INVALID_ARGUMENT: another type, or bytes that do not
// fit the shape.
absl::StatusOr<std::vector<float>> FloatsFromTensor(const Tensor& tensor);

}  // namespace attnd::client
