// The table of flags: name, type, range and meaning of every field of ServerConfig. The command
// line, the configuration file, --help, docs/configuration.md and the range checks walk it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "server/server_config.h"

namespace attnd {

struct ServerFlag {
  using Field =
      std::variant<std::string ServerConfig::*, std::vector<std::string> ServerConfig::*,
                   bool ServerConfig::*, int ServerConfig::*, std::int64_t ServerConfig::*,
                   Milliseconds ServerConfig::*, kernels::CpuTarget ServerConfig::*>;
  enum class Unit : std::uint8_t { kNone, kBytes };

  const char* name;  // the field's
  const char* group;
  Field field;
  Unit unit;
  // Inclusive; counts, bytes or milliseconds. Not used for text and booleans.
  std::int64_t min, max;
  const char* choices;  // text: the allowed values separated by '|', or empty for any
  const char* meaning;
};

std::span<const ServerFlag> ServerFlags();
const ServerFlag* FindServerFlag(std::string_view name);

// Parses `text` into the flag's field. The error is "got '...', need ...".
absl::Status SetServerFlag(const ServerFlag& flag, std::string_view text, ServerConfig& config);
// Range and choice of the field's value; the error as above.
absl::Status CheckServerFlag(const ServerFlag& flag, const ServerConfig& config);
// The field's value as text that parses to it.
std::string ServerFlagText(const ServerFlag& flag, const ServerConfig& config);
// What stands for the value in help: DURATION, SIZE, N, true|false, ...
std::string ServerFlagPlaceholder(const ServerFlag& flag);

}  // namespace attnd
