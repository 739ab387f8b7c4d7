#include "client/npy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace attnd::client {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr std::int64_t kHeaderAlignment = 64;
constexpr int kMaxRank = 32;  // NumPy's own limit

struct NpyType {
  std::string_view descr;
  v1::DataType type;
};
// The first row of a type is the one written.
constexpr std::array kTypes{
    NpyType{"<f4", v1::DATA_TYPE_FP32}, NpyType{"<f2", v1::DATA_TYPE_FP16},
    NpyType{"|V2", v1::DATA_TYPE_BF16}, NpyType{"<V2", v1::DATA_TYPE_BF16},
    NpyType{"<u2", v1::DATA_TYPE_BF16},
};

struct Header {
  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<std::int64_t>> shape;
};

// Reads the header, a Python dict literal with these three keys in any order.
class HeaderReader {
 public:
  explicit HeaderReader(std::string_view text) : text_(text) {}

  bool Read(Header& header) {
    if (!Take('{')) return false;
    while (!Take('}')) {
      std::string key;
      if (!ReadString(key) || !Take(':') || !ReadValue(key, header)) return false;
      if (!Take(',') && Peek() != '}') return false;
    }
    SkipSpace();
    return text_.empty();
  }

 private:
  void SkipSpace() {
    while (!text_.empty() && (text_[0] == ' ' || text_[0] == '\n' || text_[0] == '\t')) {
      text_.remove_prefix(1);
    }
  }
  char Peek() {
    SkipSpace();
    return text_.empty() ? '\0' : text_[0];
  }
  bool Take(char wanted) {
    if (Peek() != wanted) return false;
    text_.remove_prefix(1);
    return true;
  }
  bool TakeWord(std::string_view word) {
    SkipSpace();
    if (text_.substr(0, word.size()) != word) return false;
    text_.remove_prefix(word.size());
    return true;
  }
  bool ReadString(std::string& out) {
    const char quote = Peek();
    if (quote != '\'' && quote != '"') return false;
    const std::size_t end = text_.find(quote, 1);
    if (end == std::string_view::npos) return false;
    out = std::string(text_.substr(1, end - 1));
    text_.remove_prefix(end + 1);
    return true;
  }
  bool ReadShape(std::vector<std::int64_t>& shape) {
    if (!Take('(')) return false;
    while (!Take(')')) {
      SkipSpace();
      const std::size_t length = std::min(text_.find_first_not_of("0123456789"), text_.size());
      std::int64_t dimension = 0;
      if (!absl::SimpleAtoi(absl::string_view(text_.data(), length), &dimension)) return false;
      text_.remove_prefix(length);
      TakeWord("L");  // written by Python 2
      shape.push_back(dimension);
      if (shape.size() > kMaxRank || (!Take(',') && Peek() != ')')) return false;
    }
    return true;
  }
  bool ReadValue(const std::string& key, Header& header) {
    if (key == "descr" && !header.descr) return ReadString(header.descr.emplace());
    if (key == "shape" && !header.shape) return ReadShape(header.shape.emplace());
    if (key == "fortran_order" && !header.fortran_order) {
      header.fortran_order = TakeWord("True");
      return *header.fortran_order || TakeWord("False");
    }
    return false;
  }

  std::string_view text_;
};

absl::Status Malformed(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("not a usable .npy file: ", std::string(what)));
}

// Where the header's text lies; its end is where the data begins.
absl::StatusOr<std::string_view> HeaderText(std::string_view file) {
  if (file.size() < 10 || file.substr(0, kMagic.size()) != kMagic)
    return Malformed("no magic bytes");
  const int major = static_cast<unsigned char>(file[6]);
  if (major < 1 || major > 3) return Malformed(absl::StrCat("version ", major, ".x is not known"));
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  const std::size_t start = 8 + length_bytes;
  if (file.size() < start) return Malformed("it ends inside the header's length");
  std::size_t length = 0;
  for (std::size_t i = 0; i < length_bytes; ++i) {
    length |= static_cast<std::size_t>(static_cast<unsigned char>(file[8 + i])) << (8 * i);
  }
  if (length > file.size() - start) return Malformed("it ends inside the header");
  return file.substr(start, length);
}

}  // namespace

absl::StatusOr<Tensor> ParseNpy(const FileBytes& file) {
  const std::string_view bytes(reinterpret_cast<const char*>(file.data.get()),
                               static_cast<std::size_t>(file.size));
  const absl::StatusOr<std::string_view> text = HeaderText(bytes);
  if (!text.ok()) return text.status();
  Header header;
  if (!HeaderReader(*text).Read(header) || !header.descr || !header.fortran_order ||
      !header.shape) {
    return Malformed("the header is no dict with descr, fortran_order and shape");
  }
  Tensor tensor;
  for (const NpyType& row : kTypes) {
    if (row.descr == *header.descr) tensor.data_type = row.type;
  }
  if (!tensor.present()) {
    return Malformed(absl::StrCat("element type '", *header.descr,
                                  "'; need '<f4', '<f2', or '|V2' or '<u2' for BF16"));
  }
  if (*header.fortran_order) return Malformed("Fortran order; save np.ascontiguousarray(a)");
  tensor.shape = *std::move(header.shape);
  const absl::StatusOr<std::int64_t> size = TensorBytes(tensor.data_type, tensor.shape);
  if (!size.ok()) return Malformed(std::string(size.status().message()));
  const std::int64_t offset = text->data() + text->size() - bytes.data();
  if (*size != file.size - offset) {
    return Malformed(absl::StrCat("shape [", absl::StrJoin(tensor.shape, ", "), "] needs ", *size,
                                  " bytes, the file holds ", file.size - offset));
  }
  tensor.size_bytes = *size;
  tensor.data = std::shared_ptr<const std::byte>(file.data, file.data.get() + offset);
  return tensor;
}

absl::StatusOr<Tensor> ReadNpy(const std::string& path) {
  const absl::StatusOr<FileBytes> file = ReadFileBytes(path);
  if (!file.ok()) return file.status();
  absl::StatusOr<Tensor> tensor = ParseNpy(*file);
  if (!tensor.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", tensor.status().message()));
  }
  return tensor;
}

absl::Status WriteNpy(const std::string& path, const Tensor& tensor) {
  std::string_view descr;
  for (const NpyType& row : kTypes) {
    if (row.type == tensor.data_type && descr.empty()) descr = row.descr;
  }
  if (descr.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(".npy files hold fp32, fp16 and bf16, not ",
                                                   std::string(DataTypeName(tensor.data_type))));
  }
  std::string dict =
      absl::StrCat("{'descr': '", std::string(descr), "', 'fortran_order': False, 'shape': (",
                   absl::StrJoin(tensor.shape, ", "), tensor.shape.size() == 1 ? ",), }" : "), }");
  // Magic, version, length, dict, spaces and a newline fill a multiple of 64 bytes.
  const std::size_t prefix = kMagic.size() + 4;
  const std::size_t unpadded = prefix + dict.size() + 1;
  dict.append((kHeaderAlignment - unpadded % kHeaderAlignment) % kHeaderAlignment, ' ');
  dict.push_back('\n');
  std::string head(kMagic);
  head.push_back('\1');
  head.push_back('\0');
  head.push_back(static_cast<char>(dict.size() & 0xFFU));
  head.push_back(static_cast<char>(dict.size() >> 8));
  const std::array<std::string_view, 3> parts{
      head, dict,
      std::string_view(reinterpret_cast<const char*>(tensor.data.get()),
                       static_cast<std::size_t>(tensor.size_bytes))};
  return WriteFileBytes(path, parts);
}

}  // namespace attnd::client
