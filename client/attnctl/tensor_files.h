// Tensors named on the command line: `file.npy`, or `file.safetensors:name`.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/tensor.h"
#include "nlohmann/json.hpp"

namespace attnd::client::attnctl {

// NOT_FOUND, INVALID_ARGUMENT: the file or the name in it. An empty specification is an absent
// tensor.
absl::StatusOr<Tensor> LoadTensor(const std::string& specification);

// Whether SaveTensor can write there, as far as that can be told before there is a tensor: a step
// that was sent cannot be taken back when its output has no place. OK for an empty specification.
absl::Status CheckOutput(const std::string& specification);

// Writes to `file.npy`, or adds to `file.safetensors:name` (made where it does not exist; other
// tensors in it stay). Nothing happens for an empty specification or an absent tensor.
absl::Status SaveTensor(const std::string& specification, const Tensor& tensor);

// "bf16 [16, 8, 64]"; "none" for an absent tensor.
std::string DescribeTensor(const Tensor& tensor);
nlohmann::json TensorJson(const Tensor& tensor);

// How far `actual` is from `expected`, elementwise.
struct Difference {
  double max_absolute = 0;
  double max_relative = 0;               // to the largest magnitude of `expected`
  std::int64_t mismatched_specials = 0;  // NaN or infinity in one of them only, or of another sign
};
// INVALID_ARGUMENT: shapes differ, or a type that does not convert to floats.
absl::StatusOr<Difference> Compare(const Tensor& actual, const Tensor& expected);

}  // namespace attnd::client::attnctl
