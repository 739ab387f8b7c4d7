#include "server/tensor_validation.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/error_status.h"

namespace attnd {
namespace {

std::string Path(std::string_view field, const char* member) {
  return absl::StrCat(absl::string_view(field.data(), field.size()), ".", member);
}

std::optional<kernels::DataType> ComputeType(v1::DataType type) {
  switch (type) {
    case v1::DATA_TYPE_FP32:
      return kernels::DataType::kFp32;
    case v1::DATA_TYPE_FP16:
      return kernels::DataType::kFp16;
    case v1::DATA_TYPE_BF16:
      return kernels::DataType::kBf16;
    default:
      return std::nullopt;
  }
}

absl::Status CheckShape(std::string_view field, const WireList<std::int64_t>& shape, int rank) {
  if (shape.count != rank) {
    return InvalidField(Path(field, "shape"), absl::StrCat("rank ", shape.count),
                        absl::StrCat("rank ", rank));
  }
  for (const std::int64_t dimension : shape.values) {
    if (dimension < 0) {
      return InvalidField(Path(field, "shape"), ShapeText(shape.values), "dimensions >= 0");
    }
  }
  return absl::OkStatus();
}

// Bytes that the shape needs; nullopt: more than 2^63 - 1. Dimensions of 0 count as 1 in the check,
// so that a tensor of no elements cannot hide an absurd dimension.
std::optional<std::int64_t> ShapeBytes(absl::Span<const std::int64_t> shape,
                                       std::int64_t element_bytes) {
  std::int64_t bytes = element_bytes;
  bool empty = false;
  for (const std::int64_t dimension : shape) {
    empty = empty || dimension == 0;
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(dimension, 1), &bytes)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : bytes;
}

absl::Status CheckStorage(std::string_view field, const WireTensor& tensor,
                          std::int64_t element_bytes) {
  if (tensor.storage == WireTensor::Storage::kSharedMemory) {
    return ErrorStatus(absl::StatusCode::kUnimplemented, v1::REASON_UNSUPPORTED,
                       Path(field, "shared_memory"),
                       "this server does not offer tensors in shared memory: send `data`");
  }
  const auto need = ShapeBytes(tensor.shape.values, element_bytes);
  if (!need.has_value()) {
    return InvalidField(Path(field, "shape"), ShapeText(tensor.shape.values),
                        "a size that fits 63 bits");
  }
  if (tensor.storage == WireTensor::Storage::kNone) {
    return InvalidField(Path(field, "data"), "no data",
                        absl::StrCat(*need, " bytes for shape ", ShapeText(tensor.shape.values)));
  }
  if (*need != tensor.size_bytes) {
    return InvalidField(Path(field, "data"), absl::StrCat(tensor.size_bytes, " bytes"),
                        absl::StrCat(*need, " bytes for shape ", ShapeText(tensor.shape.values)));
  }
  return absl::OkStatus();
}

absl::Status CheckHeadCount(std::string_view field, const TensorView& tensor,
                            std::int64_t max_heads) {
  const std::int64_t heads = tensor.shape[1];
  if (heads == 0) return InvalidField(Path(field, "shape"), ShapeText(tensor.shape), "heads >= 1");
  if (heads > max_heads) return OverLimit(Path(field, "shape"), heads, max_heads);
  if (tensor.shape[2] < 1 || tensor.shape[2] > kernels::kMaxHeadDim) {
    return InvalidField(Path(field, "shape"), ShapeText(tensor.shape),
                        absl::StrCat("head_dim 1 to ", kernels::kMaxHeadDim));
  }
  return absl::OkStatus();
}

absl::Status CheckSameType(std::string_view field, const TensorView& tensor,
                           const TensorView& first, const char* first_field) {
  if (tensor.data_type == first.data_type) return absl::OkStatus();
  return InvalidField(Path(field, "data_type"), DataTypeName(tensor.data_type),
                      absl::StrCat(DataTypeName(first.data_type), " as ", first_field));
}

}  // namespace

std::string ShapeText(absl::Span<const std::int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::Status OverLimit(std::string_view field, std::int64_t got, std::int64_t limit) {
  return ErrorStatus(absl::StatusCode::kOutOfRange, v1::REASON_LIMIT, field,
                     absl::StrCat(absl::string_view(field.data(), field.size()), ": got ", got,
                                  ", this server's limit is ", limit));
}

absl::StatusOr<TensorView> ValidateTensor(std::string_view field, WireTensor tensor, int rank,
                                          std::shared_ptr<const void> owner) {
  const auto type = ComputeType(tensor.data_type);
  if (!type.has_value()) {
    return InvalidField(Path(field, "data_type"), v1::DataType_Name(tensor.data_type),
                        "DATA_TYPE_FP32, DATA_TYPE_FP16 or DATA_TYPE_BF16");
  }
  if (auto status = CheckShape(field, tensor.shape, rank); !status.ok()) return status;
  if (auto status = CheckStorage(field, tensor, kernels::ElementBytes(*type)); !status.ok()) {
    return status;
  }
  TensorView view;
  view.present = true;
  view.data_type = *type;
  view.shape = std::move(tensor.shape.values);
  view.pieces = std::move(tensor.pieces);
  view.size_bytes = tensor.size_bytes;
  view.owner = std::move(owner);
  return view;
}

absl::StatusOr<HeadShape> ValidateHeads(const TensorView& q, const TensorView& k,
                                        const TensorView& v, std::int64_t max_heads) {
  HeadShape heads;
  if (q.present) {
    if (auto status = CheckHeadCount("q", q, max_heads); !status.ok()) return status;
    heads.data_type = q.data_type;
    heads.num_heads = static_cast<std::int32_t>(q.shape[1]);
    heads.head_dim = static_cast<std::int32_t>(q.shape[2]);
  }
  if (!k.present) return heads;
  if (auto status = CheckHeadCount("k", k, max_heads); !status.ok()) return status;
  if (v.shape != k.shape) {
    return InvalidField("v.shape", ShapeText(v.shape), absl::StrCat(ShapeText(k.shape), " as k"));
  }
  if (auto status = CheckSameType("v", v, k, "k"); !status.ok()) return status;
  heads.num_kv_heads = static_cast<std::int32_t>(k.shape[1]);
  if (!q.present) {
    heads.data_type = k.data_type;
    heads.head_dim = static_cast<std::int32_t>(k.shape[2]);
    return heads;
  }
  if (auto status = CheckSameType("k", k, q, "q"); !status.ok()) return status;
  if (k.shape[2] != q.shape[2]) {
    return InvalidField("k.shape", ShapeText(k.shape),
                        absl::StrCat("head_dim ", q.shape[2], " as q"));
  }
  if (heads.num_heads % heads.num_kv_heads != 0) {
    return InvalidField("k.shape", absl::StrCat(heads.num_kv_heads, " heads"),
                        absl::StrCat("a divisor of q's ", heads.num_heads, " heads"));
  }
  return heads;
}

}  // namespace attnd
