// .safetensors files: named tensors of F32, F16 and BF16, and text metadata.
//
// Reading is strict: a header beyond 100 MB, names twice, offsets that overlap, leave a gap or do
// not fit the shape, trailing bytes: INVALID_ARGUMENT. Tensors of other element types are checked
// as well and listed, but not loaded.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/file_bytes.h"
#include "client/tensor.h"

namespace attnd::client {

struct Safetensors {
  std::map<std::string, Tensor> tensors;  // those read share the file's memory
  std::map<std::string, std::string> metadata;
  std::vector<std::string> not_loaded;  // names of tensors of other types

  // NOT_FOUND names the tensors that there are.
  absl::StatusOr<Tensor> Find(const std::string& name) const;
};

absl::StatusOr<Safetensors> ParseSafetensors(const FileBytes& file);
absl::StatusOr<Safetensors> ReadSafetensors(const std::string& path);

// Data in the order of names; `not_loaded` is not written.
absl::Status WriteSafetensors(const std::string& path, const Safetensors& content);

}  // namespace attnd::client
