// Errors of the client library: an absl::Status that carries the server's ErrorDetail as payload.
// Decide by code and reason, never by text.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "attnd/v1/attention.pb.h"

namespace attnd::client {

struct CallError {
  absl::StatusCode code = absl::StatusCode::kOk;
  v1::Reason reason = v1::REASON_UNSPECIFIED;  // UNSPECIFIED: the failure is not the service's own
  std::string message;
  v1::ErrorDetail detail;  // default where the status carries none (a transport failure)
};

CallError DescribeError(const absl::Status& status);

// "RESOURCE_EXHAUSTED/QUEUE_FULL", or the code alone where the status carries no reason.
std::string ErrorName(const absl::Status& status);
// Name and message for people: absl::Status::ToString would print the detail's bytes.
std::string ErrorText(const absl::Status& status);

// The detail alone; absent for failures of the transport, of a proxy or of this library.
std::optional<v1::ErrorDetail> DetailOf(const absl::Status& status);

// The status of a StepFailure, a SequenceFailure or a stream's reply.
absl::Status StatusFromProto(const v1::Status& status);

absl::Status StatusWithDetail(absl::StatusCode code, const v1::ErrorDetail& detail,
                              const std::string& message);

}  // namespace attnd::client
