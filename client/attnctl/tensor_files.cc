#include "client/attnctl/tensor_files.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/npy.h"
#include "client/safetensors.h"

namespace attnd::client::attnctl {
namespace {

constexpr std::string_view kSafetensors = ".safetensors";

struct NamedTensor {
  std::string path, name;
};

// The parts of `file.safetensors:name`; nothing for other specifications.
std::optional<NamedTensor> SplitSafetensors(const std::string& specification) {
  const std::size_t end = specification.rfind(std::string(kSafetensors) + ":");
  if (end == std::string::npos) return std::nullopt;
  const std::size_t colon = end + kSafetensors.size();
  return NamedTensor{specification.substr(0, colon), specification.substr(colon + 1)};
}

absl::Status UnknownForm(const std::string& specification) {
  return absl::InvalidArgumentError(absl::StrCat("tensor file: got '", specification,
                                                 "', need file.npy or file.safetensors:name"));
}

absl::Status NotWritable(const std::filesystem::path& path) {
  return absl::PermissionDeniedError(absl::StrCat("cannot write ", path.string()));
}

absl::Status CheckFolder(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    return absl::NotFoundError(absl::StrCat("cannot write ", path.string(), ": the folder ",
                                            folder.string(), " does not exist"));
  }
  return access(folder.c_str(), W_OK | X_OK) == 0 ? absl::OkStatus() : NotWritable(path);
}

// A file to add a tensor to: one that holds tensors of other types would lose them.
absl::StatusOr<Safetensors> ReadableForMore(const NamedTensor& named) {
  absl::StatusOr<Safetensors> existing = ReadSafetensors(named.path);
  if (existing.ok() && !existing->not_loaded.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(named.path, ": holds tensors of other types, which would be lost: ",
                     absl::StrJoin(existing->not_loaded, ", ")));
  }
  return existing;
}

}  // namespace

absl::StatusOr<Tensor> LoadTensor(const std::string& specification) {
  if (specification.empty()) return Tensor();
  if (const auto named = SplitSafetensors(specification)) {
    const absl::StatusOr<Safetensors> content = ReadSafetensors(named->path);
    if (!content.ok()) return content.status();
    absl::StatusOr<Tensor> tensor = content->Find(named->name);
    if (!tensor.ok()) {
      return absl::NotFoundError(absl::StrCat(named->path, ": ", tensor.status().message()));
    }
    return tensor;
  }
  if (std::filesystem::path(specification).extension() != ".npy") return UnknownForm(specification);
  return ReadNpy(specification);
}

absl::Status CheckOutput(const std::string& specification) {
  if (specification.empty()) return absl::OkStatus();
  const auto named = SplitSafetensors(specification);
  const std::filesystem::path path = named ? named->path : specification;
  if (!named && path.extension() != ".npy") return UnknownForm(specification);
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    if (!std::filesystem::is_regular_file(path, error)) {
      return absl::InvalidArgumentError(absl::StrCat(path.string(), " is not a regular file"));
    }
    if (access(path.c_str(), W_OK) != 0) return NotWritable(path);
    return named ? ReadableForMore(*named).status() : absl::OkStatus();
  }
  return CheckFolder(path);
}

absl::Status SaveTensor(const std::string& specification, const Tensor& tensor) {
  if (specification.empty() || !tensor.present()) return absl::OkStatus();
  if (const auto named = SplitSafetensors(specification)) {
    Safetensors content;
    if (std::filesystem::exists(named->path)) {
      absl::StatusOr<Safetensors> existing = ReadableForMore(*named);
      if (!existing.ok()) return existing.status();
      content = *std::move(existing);
    }
    content.tensors[named->name] = tensor;
    return WriteSafetensors(named->path, content);
  }
  if (std::filesystem::path(specification).extension() != ".npy") return UnknownForm(specification);
  return WriteNpy(specification, tensor);
}

std::string DescribeTensor(const Tensor& tensor) {
  if (!tensor.present()) return "none";
  return absl::StrCat(std::string(DataTypeName(tensor.data_type)), " [",
                      absl::StrJoin(tensor.shape, ", "), "]");
}

nlohmann::json TensorJson(const Tensor& tensor) {
  if (!tensor.present()) return nullptr;
  return {{"type", std::string(DataTypeName(tensor.data_type))},
          {"shape", tensor.shape},
          {"bytes", tensor.size_bytes}};
}

absl::StatusOr<Difference> Compare(const Tensor& actual, const Tensor& expected) {
  if (actual.shape != expected.shape) {
    return absl::InvalidArgumentError(
        absl::StrCat("shapes differ: ", DescribeTensor(actual), " and ", DescribeTensor(expected)));
  }
  const absl::StatusOr<std::vector<float>> a = FloatsFromTensor(actual);
  if (!a.ok()) return a.status();
  const absl::StatusOr<std::vector<float>> b = FloatsFromTensor(expected);
  if (!b.ok()) return b.status();
  Difference difference;
  double largest = 0;
  for (std::size_t i = 0; i < a->size(); ++i) {
    const double x = (*a)[i];
    const double y = (*b)[i];
    if (!std::isfinite(x) || !std::isfinite(y)) {
      const bool same = (std::isnan(x) && std::isnan(y)) || x == y;
      difference.mismatched_specials += same ? 0 : 1;
      continue;
    }
    largest = std::max(largest, std::abs(y));
    difference.max_absolute = std::max(difference.max_absolute, std::abs(x - y));
  }
  difference.max_relative = largest > 0 ? difference.max_absolute / largest : 0;
  return difference;
}

}  // namespace attnd::client::attnctl
