#include "server/status_conversion.h"

#include <google/protobuf/util/time_util.h>

#include "attnd/v1/rpc_status.pb.h"
#include "server/error_status.h"

namespace attnd {
namespace {

// gRPC puts the message into a percent-encoded header, three bytes for one in the worst case, and
// clients refuse headers above 8 KiB by default: a status that they cannot receive would look like
// a broken connection.
constexpr std::size_t kMaxMessageBytes = 1024;

std::string BoundedMessage(const absl::Status& status) {
  std::string message(status.message());
  if (message.size() > kMaxMessageBytes) {
    message.resize(kMaxMessageBytes);
    message += "...";
  }
  return message;
}

}  // namespace

std::string RetryPushback(const absl::Status& error) {
  const v1::ErrorDetail detail = ErrorDetailOf(error);
  if (!detail.has_retry_delay()) return "-1";
  const auto delay_us =
      google::protobuf::util::TimeUtil::DurationToMicroseconds(detail.retry_delay());
  return std::to_string(delay_us <= 0 ? 0 : (delay_us + 999) / 1000);
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  v1::RpcStatus envelope;
  envelope.set_code(static_cast<int>(status.code()));
  envelope.set_message(BoundedMessage(status));
  envelope.add_details()->PackFrom(ErrorDetailOf(status));
  return {static_cast<grpc::StatusCode>(status.code()), envelope.message(),
          envelope.SerializeAsString()};
}

grpc::Status FinishStatus(const absl::Status& status, grpc::ServerContextBase& context) {
  if (!status.ok()) context.AddTrailingMetadata(kRetryPushbackKey, RetryPushback(status));
  return ToGrpcStatus(status);
}

}  // namespace attnd
