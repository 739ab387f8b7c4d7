// Bytes -> the sliced messages that gRPC delivers, and back.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <string>

#include "server/wire_reader.h"

namespace attnd::testing {

// `bytes` in slices of `slice_bytes` (the last one shorter).
grpc::ByteBuffer SlicedBuffer(const std::string& bytes, std::size_t slice_bytes);
std::shared_ptr<const WireMessage> SlicedMessage(const std::string& bytes, std::size_t slice_bytes);

std::string BytesOf(const grpc::ByteBuffer& buffer);
std::string BytesOf(const std::vector<ByteRange>& pieces);

}  // namespace attnd::testing
