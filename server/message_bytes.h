// Small protobuf messages from and to gRPC's byte buffers, for rpcs whose requests are received raw
// so that one that is too big is refused before protobuf expands it.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <cstddef>

namespace attnd {

// False: the bytes are no such message.
bool ParseMessage(const grpc::ByteBuffer& wire, google::protobuf::Message& message);

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

// Of the services that only carry names: health and reflection. Also keeps an error that repeats a
// name, percent-encoded, within the 8 KiB of metadata that clients take.
inline constexpr std::size_t kMaxNameMessageBytes = 2048;

// RESOURCE_EXHAUSTED above that limit, INVALID_ARGUMENT for bytes that are no such message.
grpc::Status ParseNameMessage(const grpc::ByteBuffer& wire, google::protobuf::Message& message);

}  // namespace attnd
