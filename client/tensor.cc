#include "client/tensor.h"

#include <array>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/half_precision.h"

namespace attnd::client {
namespace {

constexpr std::align_val_t kAlignment{64};

struct NamedType {
  std::string_view name;
  v1::DataType type;
  int element_bytes;
};
constexpr std::array kTypes{
    NamedType{"fp32", v1::DATA_TYPE_FP32, 4},         NamedType{"fp16", v1::DATA_TYPE_FP16, 2},
    NamedType{"bf16", v1::DATA_TYPE_BF16, 2},         NamedType{"int8", v1::DATA_TYPE_INT8, 1},
    NamedType{"fp8_e4m3", v1::DATA_TYPE_FP8_E4M3, 1},
};

}  // namespace

int ElementBytes(v1::DataType type) {
  for (const NamedType& row : kTypes) {
    if (row.type == type) return row.element_bytes;
  }
  return 0;
}

std::string_view DataTypeName(v1::DataType type) {
  for (const NamedType& row : kTypes) {
    if (row.type == type) return row.name;
  }
  return "unspecified";
}

absl::StatusOr<v1::DataType> ParseDataType(std::string_view name) {
  for (const NamedType& row : kTypes) {
    if (row.name == name) return row.type;
  }
  return absl::InvalidArgumentError(absl::StrCat("data type: got '", std::string(name),
                                                 "', need fp32, fp16, bf16, int8 or fp8_e4m3"));
}

absl::StatusOr<std::int64_t> TensorBytes(v1::DataType type, std::span<const std::int64_t> shape) {
  std::int64_t bytes = ElementBytes(type);
  if (bytes == 0) return absl::InvalidArgumentError("the tensor has no known data type");
  bool empty = false;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape [", absl::StrJoin(shape, ", "), "] has a negative dimension"));
    }
    empty = empty || dimension == 0;
  }
  if (empty) return 0;
  for (const std::int64_t dimension : shape) {
    if (bytes > std::numeric_limits<std::int64_t>::max() / dimension) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape [", absl::StrJoin(shape, ", "), "] holds more than 2^63 bytes"));
    }
    bytes *= dimension;
  }
  return bytes;
}

std::shared_ptr<std::byte> AllocateBytes(std::int64_t size_bytes) {
  auto* memory = static_cast<std::byte*>(
      ::operator new(static_cast<std::size_t>(size_bytes > 0 ? size_bytes : 1), kAlignment));
  return {memory, [](std::byte* pointer) { ::operator delete(pointer, kAlignment); }};
}

absl::StatusOr<Tensor> TensorFromFloats(v1::DataType type, std::vector<std::int64_t> shape,
                                        std::span<const float> values) {
  const absl::StatusOr<std::int64_t> bytes = TensorBytes(type, shape);
  if (!bytes.ok()) return bytes.status();
  if (*bytes != static_cast<std::int64_t>(values.size()) * ElementBytes(type)) {
    return absl::InvalidArgumentError(absl::StrCat("shape [", absl::StrJoin(shape, ", "),
                                                   "] does not hold ", values.size(), " values"));
  }
  std::shared_ptr<std::byte> memory = AllocateBytes(*bytes);
  auto* halves = reinterpret_cast<std::uint16_t*>(memory.get());
  switch (type) {
    case v1::DATA_TYPE_FP32:
      // An empty span may have no address, which memcpy must not see.
      if (!values.empty()) std::memcpy(memory.get(), values.data(), values.size_bytes());
      break;
    case v1::DATA_TYPE_FP16:
      Fp16FromFloats(values, {halves, values.size()});
      break;
    case v1::DATA_TYPE_BF16:
      Bf16FromFloats(values, {halves, values.size()});
      break;
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "floats convert to fp32, fp16 and bf16, not to ", std::string(DataTypeName(type))));
  }
  return Tensor{type, std::move(shape), std::move(memory), *bytes};
}

absl::StatusOr<std::vector<float>> FloatsFromTensor(const Tensor& tensor) {
  const absl::StatusOr<std::int64_t> bytes = TensorBytes(tensor.data_type, tensor.shape);
  if (!bytes.ok()) return bytes.status();
  if (*bytes != tensor.size_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("shape [", absl::StrJoin(tensor.shape, ", "),
                                                   "] needs ", *bytes, " bytes, got ",
                                                   tensor.size_bytes));
  }
  std::vector<float> values(static_cast<std::size_t>(*bytes / ElementBytes(tensor.data_type)));
  if (tensor.data_type == v1::DATA_TYPE_FP32) {
    if (*bytes > 0) std::memcpy(values.data(), tensor.data.get(), static_cast<std::size_t>(*bytes));
    return values;
  }
  // Copied first: wrapped memory may be unaligned for 16-bit loads.
  std::vector<std::uint16_t> halves(values.size());
  if (tensor.data_type == v1::DATA_TYPE_FP16 || tensor.data_type == v1::DATA_TYPE_BF16) {
    if (*bytes > 0) std::memcpy(halves.data(), tensor.data.get(), static_cast<std::size_t>(*bytes));
    (tensor.data_type == v1::DATA_TYPE_FP16 ? FloatsFromFp16 : FloatsFromBf16)(halves, values);
    return values;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(DataTypeName(tensor.data_type)), " does not convert to floats"));
}

}  // namespace attnd::client
