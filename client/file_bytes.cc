#include "client/file_bytes.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/tensor.h"

namespace attnd::client {
namespace {

absl::Status SystemError(std::string_view action, const std::string& path) {
  const int error = errno;
  const std::string text = absl::StrCat("cannot ", std::string(action), " ", path, ": ",
                                        error != 0 ? std::strerror(error) : "unknown error");
  return error == ENOENT ? absl::NotFoundError(text) : absl::FailedPreconditionError(text);
}

}  // namespace

absl::StatusOr<FileBytes> ReadFileBytes(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return SystemError("open", path);
  const std::streamoff size = file.tellg();
  // A directory opens, and then has no size.
  if (size < 0 || size == std::numeric_limits<std::streamoff>::max()) {
    return SystemError("read", path);
  }
  std::shared_ptr<std::byte> bytes = AllocateBytes(size);
  file.seekg(0);
  if (size > 0 && !file.read(reinterpret_cast<char*>(bytes.get()), size)) {
    return SystemError("read", path);
  }
  return FileBytes{std::move(bytes), size};
}

absl::Status WriteFileBytes(const std::string& path, std::span<const std::string_view> parts) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (!file) return SystemError("open", path);
  for (const std::string_view part : parts) {
    file.write(part.data(), static_cast<std::streamsize>(part.size()));
  }
  file.close();
  if (!file) return SystemError("write", path);
  return absl::OkStatus();
}

}  // namespace attnd::client
