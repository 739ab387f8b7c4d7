#include "server/config_file.h"

#include <fstream>
#include <ios>
#include <iterator>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "yaml-cpp/yaml.h"

namespace attnd {
namespace {

absl::Status At(const std::string& path, const YAML::Mark& mark, const std::string& message) {
  if (mark.is_null()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", message));
  return absl::InvalidArgumentError(absl::StrCat(path, ":", mark.line + 1, ": ", message));
}

absl::StatusOr<std::vector<ConfigFileEntry>> ReadEntries(const std::string& path,
                                                         const std::string& text) {
  std::vector<ConfigFileEntry> entries;
  const YAML::Node root = YAML::Load(text);
  if (root.IsNull()) return entries;
  if (!root.IsMap()) return At(path, root.Mark(), "need a map of flag names to values");
  std::set<std::string> keys;
  for (const auto& pair : root) {
    ConfigFileEntry entry;
    if (!pair.first.IsScalar()) return At(path, pair.first.Mark(), "a key must be a flag name");
    entry.key = pair.first.Scalar();
    entry.line = pair.first.Mark().line + 1;
    if (!keys.insert(entry.key).second) {
      return At(path, pair.first.Mark(), absl::StrCat(entry.key, ": stands twice"));
    }
    if (pair.second.IsScalar()) {
      entry.value = pair.second.Scalar();
    } else if (pair.second.IsSequence()) {
      std::vector<std::string> values;
      for (const YAML::Node& value : pair.second) {
        if (!value.IsScalar()) return At(path, value.Mark(), entry.key + ": need plain values");
        values.push_back(value.Scalar());
      }
      entry.value = absl::StrJoin(values, ",");
    } else {
      return At(path, pair.first.Mark(), absl::StrCat(entry.key, ": need a value"));
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace

absl::StatusOr<std::vector<ConfigFileEntry>> ReadConfigFile(const std::string& path) {
  try {
    std::ifstream file(path);
    if (!file) return At(path, YAML::Mark::null_mark(), "the file cannot be opened");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return ReadEntries(path, text);
  } catch (const YAML::Exception& error) {
    return At(path, error.mark, error.msg);
  } catch (const std::ios_base::failure&) {  // a directory
    return At(path, YAML::Mark::null_mark(), "the file cannot be read");
  }
}

}  // namespace attnd
