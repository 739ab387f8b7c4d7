#include "tests/support/wire_messages.h"

#include <algorithm>
#include <vector>

namespace attnd::testing {

grpc::ByteBuffer SlicedBuffer(const std::string& bytes, std::size_t slice_bytes) {
  std::vector<grpc::Slice> slices;
  for (std::size_t begin = 0; begin < bytes.size(); begin += slice_bytes) {
    slices.emplace_back(bytes.substr(begin, slice_bytes));
  }
  return {slices.data(), slices.size()};
}

std::shared_ptr<const WireMessage> SlicedMessage(const std::string& bytes,
                                                 std::size_t slice_bytes) {
  return WireMessage::FromByteBuffer(SlicedBuffer(bytes, slice_bytes));
}

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Dump(&slices).ok()) return bytes;
  for (const auto& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

std::string BytesOf(const std::vector<ByteRange>& pieces) {
  std::string bytes;
  for (const auto& piece : pieces) {
    bytes.append(reinterpret_cast<const char*>(piece.data), piece.size);
  }
  return bytes;
}

}  // namespace attnd::testing
