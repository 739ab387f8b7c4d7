// Whole files in and out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace attnd::client {

struct FileBytes {
  std::shared_ptr<const std::byte> data;
  std::int64_t size = 0;
};

// NOT_FOUND, or what else the system says, with the path.
absl::StatusOr<FileBytes> ReadFileBytes(const std::string& path);

// Replaces the file by the parts, one after another. A failed write is reported, full disk
// included.
absl::Status WriteFileBytes(const std::string& path, std::span<const std::string_view> parts);

}  // namespace attnd::client
