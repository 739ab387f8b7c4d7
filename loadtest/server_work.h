// What the server did during a run: the difference of its own account, /statusz.json on the admin
// port, between the beginning and the end.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace attnd::loadtest {

// `admin` is host:port. The error names it.
absl::StatusOr<nlohmann::json> ReadServerStatus(const std::string& admin);

// Pure. Kernels that ran, stages that were passed, batches by their sequences, and the device's
// ceilings. An error where the two are not of one server process.
absl::StatusOr<nlohmann::json> ServerWork(const nlohmann::json& before,
                                          const nlohmann::json& after);

}  // namespace attnd::loadtest
