// Hand encoder of the two requests that carry tensors. A tensor's bytes become a slice that refers
// to its memory: nothing is copied between the caller and the socket. The output is the protobuf
// wire format of attnd.v1.AttendRequest and attnd.v1.DecodeRequest.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/attention_types.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"

namespace attnd::client {

// Protobuf messages end at 2^31 - 1 bytes. Larger ones are refused here: RESOURCE_EXHAUSTED,
// MESSAGE_SIZE, with both sizes in the text. INVALID_ARGUMENT: a tensor without bytes.
absl::StatusOr<grpc::ByteBuffer> EncodeAttendRequest(const AttendRequest& request);
absl::StatusOr<grpc::ByteBuffer> EncodeDecodeRequest(const DecodeRequest& request,
                                                     std::uint64_t request_id);

// Messages without tensors: generated code, one slice.
absl::StatusOr<grpc::ByteBuffer> EncodeMessage(const google::protobuf::MessageLite& message);

}  // namespace attnd::client
