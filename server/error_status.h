// Errors inside the server: an absl::Status whose payload is an attnd.v1.ErrorDetail. Built here,
// converted to gRPC in status_conversion.cc, nowhere else.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "attnd/v1/attention.pb.h"
#include "kernels/attention_params.h"

namespace attnd {

// `field` is the path of the offending field ("steps[3].position") or empty.
absl::Status ErrorStatus(absl::StatusCode code, v1::Reason reason, std::string_view field,
                         std::string_view message);
absl::Status ErrorStatus(absl::StatusCode code, const v1::ErrorDetail& detail,
                         std::string_view message);

// INVALID_ARGUMENT with the text "<field>: got <got>, need <need>".
absl::Status InvalidField(std::string_view field, std::string_view got, std::string_view need);

// As errors name it: "BF16".
const char* DataTypeName(kernels::DataType type);

// The detail of a status made above; a default one (reason from the code, step_index -1) otherwise.
v1::ErrorDetail ErrorDetailOf(const absl::Status& status);

// The wire form used in streams and per-step failures.
v1::Status ToProtoStatus(const absl::Status& status);

}  // namespace attnd
