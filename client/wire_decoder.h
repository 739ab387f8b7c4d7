// Hand parser of the two replies that carry tensors, over gRPC's slices: a tensor is copied once,
// into its final memory, or not at all.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "client/attention_types.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"

namespace attnd::client {

enum class TensorBytesPolicy : std::uint8_t {
  kCopy,
  kSkip,  // type, shape and size only; `data` stays null
};

struct DecodeReply {
  std::uint64_t request_id = 0;
  std::optional<v1::Status> status;  // streams only
  DecodeResult result;
};

// INTERNAL: bytes that are no such message, or a tensor whose bytes do not fit its shape.
absl::StatusOr<AttendResult> DecodeAttendReply(const grpc::ByteBuffer& wire,
                                               TensorBytesPolicy policy);
absl::StatusOr<DecodeReply> DecodeDecodeReply(const grpc::ByteBuffer& wire,
                                              TensorBytesPolicy policy);
absl::Status DecodeMessage(const grpc::ByteBuffer& wire, google::protobuf::MessageLite& message);

}  // namespace attnd::client
