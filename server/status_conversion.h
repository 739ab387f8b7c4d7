// absl::Status -> grpc::Status, here and nowhere else.
//
// An error carries its ErrorDetail as the one Any of an attnd.v1.RpcStatus (field-compatible with
// google.rpc.Status) in `grpc-status-details-bin`, and a `grpc-retry-pushback-ms` trailer: the
// retry delay of a retryable error, -1 for a final one, so that gRPC clients with a retry policy
// and ours agree on what may be sent again.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace attnd {

inline constexpr char kRetryPushbackKey[] = "grpc-retry-pushback-ms";

// The trailer's value: whole milliseconds, rounded up, or "-1".
std::string RetryPushback(const absl::Status& error);

grpc::Status ToGrpcStatus(const absl::Status& status);

// ToGrpcStatus, and adds the pushback trailer. Call it at most once a call, before Finish.
grpc::Status FinishStatus(const absl::Status& status, grpc::ServerContextBase& context);

}  // namespace attnd
