#include "client/safetensors.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

namespace attnd::client {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kLengthBytes = 8;
constexpr std::int64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr std::size_t kHeaderAlignment = 8;

struct FileType {
  std::string_view name;
  int element_bytes;
  v1::DataType type;  // UNSPECIFIED: known, not loaded
};
constexpr std::array kTypes{
    FileType{"F32", 4, v1::DATA_TYPE_FP32},        FileType{"F16", 2, v1::DATA_TYPE_FP16},
    FileType{"BF16", 2, v1::DATA_TYPE_BF16},       FileType{"F64", 8, v1::DATA_TYPE_UNSPECIFIED},
    FileType{"I64", 8, v1::DATA_TYPE_UNSPECIFIED}, FileType{"U64", 8, v1::DATA_TYPE_UNSPECIFIED},
    FileType{"I32", 4, v1::DATA_TYPE_UNSPECIFIED}, FileType{"U32", 4, v1::DATA_TYPE_UNSPECIFIED},
    FileType{"I16", 2, v1::DATA_TYPE_UNSPECIFIED}, FileType{"U16", 2, v1::DATA_TYPE_UNSPECIFIED},
    FileType{"I8", 1, v1::DATA_TYPE_UNSPECIFIED},  FileType{"U8", 1, v1::DATA_TYPE_UNSPECIFIED},
    FileType{"BOOL", 1, v1::DATA_TYPE_UNSPECIFIED}};

struct Extent {
  std::int64_t begin, end;
};

absl::Status Malformed(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("not a usable .safetensors file: ", what));
}

// Parses the header and refuses a name that stands twice (the parser alone would keep the last).
absl::StatusOr<Json> ParseHeader(std::string_view text) {
  std::set<std::string> names;
  std::string repeated;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::key && depth == 1 &&
        !names.insert(value.get<std::string>()).second) {
      repeated = value.get<std::string>();
    }
    return true;
  };
  Json header = Json::parse(text, watch, /*allow_exceptions=*/false);
  if (header.is_discarded() || !header.is_object())
    return Malformed("the header is no JSON object");
  if (!repeated.empty()) return Malformed(absl::StrCat("the name '", repeated, "' stands twice"));
  return header;
}

absl::Status ReadMetadata(const Json& entry, std::map<std::string, std::string>& metadata) {
  if (!entry.is_object()) return Malformed("__metadata__ is no object");
  for (const auto& [key, value] : entry.items()) {
    if (!value.is_string()) return Malformed("__metadata__ holds a value that is no text");
    metadata[key] = value.get<std::string>();
  }
  return absl::OkStatus();
}

// Non-negative integers within int64.
bool ReadIntegers(const Json& array, std::vector<std::int64_t>& values) {
  if (!array.is_array()) return false;
  for (const Json& value : array) {
    if (!value.is_number_unsigned()) return false;
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return false;
    values.push_back(static_cast<std::int64_t>(number));
  }
  return true;
}

// Bytes of `shape` with elements of this size; negative: beyond int64.
std::int64_t SizeOf(int element_bytes, const std::vector<std::int64_t>& shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::int64_t bytes = element_bytes;
  for (const std::int64_t dimension : shape) {
    if (bytes > std::numeric_limits<std::int64_t>::max() / dimension) return -1;
    bytes *= dimension;
  }
  return bytes;
}

absl::Status ReadEntry(const std::string& name, const Json& entry, const FileBytes& file,
                       std::int64_t data_offset, Safetensors& content,
                       std::vector<Extent>& extents) {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> offsets;
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() ||
      !entry.contains("shape") || !ReadIntegers(entry["shape"], shape) ||
      !entry.contains("data_offsets") || !ReadIntegers(entry["data_offsets"], offsets) ||
      offsets.size() != 2) {
    return Malformed(absl::StrCat("'", name, "' lacks dtype, shape or data_offsets"));
  }
  const auto type_name = entry["dtype"].get<std::string>();
  const auto* type = std::find_if(kTypes.begin(), kTypes.end(),
                                  [&](const FileType& row) { return row.name == type_name; });
  if (type == kTypes.end()) {
    return Malformed(absl::StrCat("'", name, "' has the unknown dtype ", type_name));
  }
  const Extent extent{offsets[0], offsets[1]};
  const std::int64_t bytes = SizeOf(type->element_bytes, shape);
  if (extent.begin > extent.end || extent.end > file.size - data_offset) {
    return Malformed(
        absl::StrCat("'", name, "' lies outside the file: [", extent.begin, ", ", extent.end, ")"));
  }
  if (bytes != extent.end - extent.begin) {
    return Malformed(absl::StrCat("'", name, "': shape [", absl::StrJoin(shape, ", "), "] of ",
                                  type_name, " does not fill ", extent.end - extent.begin,
                                  " bytes"));
  }
  extents.push_back(extent);
  if (type->type == v1::DATA_TYPE_UNSPECIFIED) {
    content.not_loaded.push_back(name);
    return absl::OkStatus();
  }
  content.tensors[name] = Tensor{
      type->type, std::move(shape),
      std::shared_ptr<const std::byte>(file.data, file.data.get() + data_offset + extent.begin),
      bytes};
  return absl::OkStatus();
}

// Every byte of the data belongs to exactly one tensor.
absl::Status CheckCoverage(std::vector<Extent> extents, std::int64_t data_bytes) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  std::int64_t covered = 0;
  for (const Extent& extent : extents) {
    if (extent.begin < covered) return Malformed("two tensors overlap");
    if (extent.begin > covered) return Malformed(absl::StrCat("a gap at data byte ", covered));
    covered = extent.end;
  }
  if (covered != data_bytes) {
    return Malformed(absl::StrCat(data_bytes - covered, " bytes belong to no tensor"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Tensor> Safetensors::Find(const std::string& name) const {
  const auto found = tensors.find(name);
  if (found != tensors.end()) return found->second;
  return absl::NotFoundError(absl::StrCat(
      "no tensor '", name,
      "'; there are: ", absl::StrJoin(tensors, ", ", [](std::string* out, const auto& item) {
        *out += item.first;
      })));
}

absl::StatusOr<Safetensors> ParseSafetensors(const FileBytes& file) {
  if (file.size < kLengthBytes) return Malformed("shorter than 8 bytes");
  std::uint64_t header_bytes = 0;
  for (int i = 0; i < kLengthBytes; ++i) {
    header_bytes |= std::to_integer<std::uint64_t>(file.data.get()[i]) << (8 * i);
  }
  if (header_bytes >
      static_cast<std::uint64_t>(std::min(kMaxHeaderBytes, file.size - kLengthBytes))) {
    return Malformed(absl::StrCat("a header of ", header_bytes, " bytes does not fit"));
  }
  const absl::StatusOr<Json> header =
      ParseHeader({reinterpret_cast<const char*>(file.data.get()) + kLengthBytes, header_bytes});
  if (!header.ok()) return header.status();
  const std::int64_t data_offset = kLengthBytes + static_cast<std::int64_t>(header_bytes);
  Safetensors content;
  std::vector<Extent> extents;
  for (const auto& [name, entry] : header->items()) {
    absl::Status status = name == "__metadata__"
                              ? ReadMetadata(entry, content.metadata)
                              : ReadEntry(name, entry, file, data_offset, content, extents);
    if (!status.ok()) return status;
  }
  absl::Status status = CheckCoverage(std::move(extents), file.size - data_offset);
  if (!status.ok()) return status;
  return content;
}

absl::StatusOr<Safetensors> ReadSafetensors(const std::string& path) {
  const absl::StatusOr<FileBytes> file = ReadFileBytes(path);
  if (!file.ok()) return file.status();
  absl::StatusOr<Safetensors> content = ParseSafetensors(*file);
  if (!content.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", content.status().message()));
  }
  return content;
}

absl::Status WriteSafetensors(const std::string& path, const Safetensors& content) {
  Json header = Json::object();
  if (!content.metadata.empty()) header["__metadata__"] = content.metadata;
  std::vector<std::string_view> parts(1);
  std::int64_t offset = 0;
  for (const auto& [name, tensor] : content.tensors) {
    const auto* type = std::find_if(
        kTypes.begin(), kTypes.end(), [&, wanted = tensor.data_type](const FileType& row) {
          return wanted != v1::DATA_TYPE_UNSPECIFIED && row.type == wanted;
        });
    if (type == kTypes.end() || SizeOf(type->element_bytes, tensor.shape) != tensor.size_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", name, "' is no fp32, fp16 or bf16 tensor whose bytes fit its shape"));
    }
    header[name] = {{"dtype", std::string(type->name)},
                    {"shape", tensor.shape},
                    {"data_offsets", {offset, offset + tensor.size_bytes}}};
    parts.emplace_back(reinterpret_cast<const char*>(tensor.data.get()),
                       static_cast<std::size_t>(tensor.size_bytes));
    offset += tensor.size_bytes;
  }
  std::string text = header.dump();
  text.append((kHeaderAlignment - text.size() % kHeaderAlignment) % kHeaderAlignment, ' ');
  std::string head;
  for (int i = 0; i < kLengthBytes; ++i) {
    head.push_back(static_cast<char>((text.size() >> (8 * i)) & 0xFFU));
  }
  head += text;
  parts[0] = head;
  return WriteFileBytes(path, parts);
}

}  // namespace attnd::client
