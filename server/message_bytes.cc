#include "server/message_bytes.h"

#include <grpcpp/support/proto_buffer_reader.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace attnd {

bool ParseMessage(const grpc::ByteBuffer& wire, google::protobuf::Message& message) {
  message.Clear();
  if (!wire.Valid()) return true;  // a message of no bytes
  grpc::ByteBuffer copy(wire);     // of the reference; the reader wants it mutable
  grpc::ProtoBufferReader reader(&copy);
  return reader.status().ok() && message.ParseFromZeroCopyStream(&reader);
}

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return {&slice, 1};
}

grpc::Status ParseNameMessage(const grpc::ByteBuffer& wire, google::protobuf::Message& message) {
  const std::string& name = message.GetDescriptor()->name();
  if (wire.Length() > kMaxNameMessageBytes) {
    return {
        grpc::StatusCode::RESOURCE_EXHAUSTED,
        absl::StrCat(name, ": got ", wire.Length(), " bytes, need at most ", kMaxNameMessageBytes)};
  }
  if (ParseMessage(wire, message)) return grpc::Status::OK;
  return {grpc::StatusCode::INVALID_ARGUMENT, absl::StrCat(name, ": not a valid protobuf message")};
}

}  // namespace attnd
