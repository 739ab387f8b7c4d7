// The JSON document of /statusz.json, from which the page /statusz draws itself.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "server/build_info.h"
#include "server/status_history.h"
#include "server/status_totals.h"

namespace attnd {

// What does not change while the server runs.
struct StatusFacts {
  struct Flag {
    std::string name, group, value, default_value;
  };
  std::string server_name, device;
  BuildInfo build;
  std::vector<Flag> flags;  // values in effect
  double start_unix_seconds = 0;
};

struct StatusState {
  double unix_seconds = 0;
  bool serving = false;
  std::string reason;  // why not
};

// Pure. Numbers that are not finite, and percentiles of nothing, are null.
std::string StatusJson(const StatusFacts& facts, const StatusState& state,
                       const StatusTotals& totals, const std::vector<StatusSample>& samples);

}  // namespace attnd
