#include "client/merge_states.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/attention_kernels.h"

namespace attnd::client {
namespace {

absl::Status CheckField(std::size_t part, const char* field, const Tensor& tensor,
                        std::span<const std::int64_t> shape) {
  const absl::StatusOr<std::int64_t> bytes = TensorBytes(v1::DATA_TYPE_FP32, shape);
  if (tensor.data_type == v1::DATA_TYPE_FP32 && bytes.ok() && tensor.size_bytes == *bytes &&
      std::equal(shape.begin(), shape.end(), tensor.shape.begin(), tensor.shape.end())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "parts[", part, "].", field, ": got ", std::string(DataTypeName(tensor.data_type)), " [",
      absl::StrJoin(tensor.shape, ", "), "] in ", tensor.size_bytes, " bytes, need fp32 [",
      absl::StrJoin(shape, ", "), "]"));
}

absl::Status Check(std::span<const PartialState> parts, std::span<const float> sink_logits,
                   v1::DataType type) {
  if (parts.empty()) return absl::InvalidArgumentError("parts: got none, need one or more");
  if (type != v1::DATA_TYPE_FP32 && type != v1::DATA_TYPE_FP16 && type != v1::DATA_TYPE_BF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("type: got ", std::string(DataTypeName(type)), ", need fp32, fp16 or bf16"));
  }
  const std::vector<std::int64_t>& shape = parts.front().o.shape;
  if (shape.size() != 3 || shape[2] < 1 || shape[2] > kernels::kMaxHeadDim) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parts[0].o: got shape [", absl::StrJoin(shape, ", "),
        "], need [tokens, num_heads, head_dim] with head_dim 1 to ", kernels::kMaxHeadDim));
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (absl::Status status = CheckField(i, "o", parts[i].o, shape); !status.ok()) return status;
    absl::Status status = CheckField(i, "lse", parts[i].lse, std::span(shape).first(2));
    if (!status.ok()) return status;
  }
  if (!sink_logits.empty() && static_cast<std::int64_t>(sink_logits.size()) != shape[1]) {
    return absl::InvalidArgumentError(absl::StrCat("sink_logits: got ", sink_logits.size(),
                                                   " values, need none or num_heads = ", shape[1]));
  }
  return absl::OkStatus();
}

kernels::DataType KernelType(v1::DataType type) {
  switch (type) {
    case v1::DATA_TYPE_FP16:
      return kernels::DataType::kFp16;
    case v1::DATA_TYPE_BF16:
      return kernels::DataType::kBf16;
    default:
      return kernels::DataType::kFp32;
  }
}

}  // namespace

absl::StatusOr<MergedState> MergeStates(std::span<const PartialState> parts,
                                        std::span<const float> sink_logits, v1::DataType type) {
  if (absl::Status status = Check(parts, sink_logits, type); !status.ok()) return status;
  const std::vector<std::int64_t>& shape = parts.front().o.shape;
  const std::int64_t num_rows = shape[0] * shape[1];

  std::vector<const float*> o_parts;
  std::vector<const float*> lse_parts;
  for (const PartialState& part : parts) {
    o_parts.push_back(reinterpret_cast<const float*>(part.o.data.get()));
    lse_parts.push_back(reinterpret_cast<const float*>(part.lse.data.get()));
  }
  std::vector<float> row_sinks;
  if (!sink_logits.empty()) {
    row_sinks.reserve(static_cast<std::size_t>(num_rows));
    for (std::int64_t token = 0; token < shape[0]; ++token) {
      row_sinks.insert(row_sinks.end(), sink_logits.begin(), sink_logits.end());
    }
  }

  MergedState merged;
  const std::int64_t o_bytes = num_rows * shape[2] * ElementBytes(type);
  const std::int64_t lse_bytes = num_rows * ElementBytes(v1::DATA_TYPE_FP32);
  std::shared_ptr<std::byte> o = AllocateBytes(o_bytes);
  std::shared_ptr<std::byte> lse = AllocateBytes(lse_bytes);
  kernels::MergeParams params;
  params.o_parts = o_parts.data();
  params.lse_parts = lse_parts.data();
  params.num_parts = static_cast<std::int32_t>(parts.size());
  params.num_rows = num_rows;
  params.head_dim = static_cast<std::int32_t>(shape[2]);
  params.sink_logits = row_sinks.empty() ? nullptr : row_sinks.data();
  params.type = KernelType(type);
  params.o = o.get();
  params.lse = reinterpret_cast<float*>(lse.get());
  kernels::MergeStates(params);
  merged.o = Tensor{type, shape, std::move(o), o_bytes};
  merged.lse = Tensor{v1::DATA_TYPE_FP32, {shape[0], shape[1]}, std::move(lse), lse_bytes};
  return merged;
}

}  // namespace attnd::client
