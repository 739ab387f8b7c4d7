// The configuration file: a YAML map from flag names to values.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace attnd {

struct ConfigFileEntry {
  std::string key;
  std::string value;  // a list is joined with commas
  int line = 0;       // from 1
};

// Entries in order. The error names the file and, where it can, the line: unreadable, not YAML, not
// a map, a key twice, a value that is neither a scalar nor a list of scalars.
absl::StatusOr<std::vector<ConfigFileEntry>> ReadConfigFile(const std::string& path);

}  // namespace attnd
