// Reads the protobuf wire format from the slices of a ByteBuffer, front to back, within bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "grpcpp/support/byte_buffer.h"

namespace attnd::client {

// Every read returns false, and leaves the cursor failed, where the bytes end early or are
// malformed.
class SliceCursor {
 public:
  // Holds references to the buffer's slices.
  explicit SliceCursor(const grpc::ByteBuffer& wire);

  std::int64_t position() const { return position_; }
  std::int64_t size() const { return size_; }

  bool ReadVarint(std::uint64_t& value);
  // Field number and wire type; field numbers below 1 or above 2^29 - 1 are malformed.
  bool ReadTag(int& field, int& wire_type);
  // A length that ends at or before `limit` (a position).
  bool ReadLength(std::int64_t limit, std::int64_t& length);
  bool ReadBytes(std::int64_t count, std::byte* destination);
  bool ReadString(std::int64_t count, std::string& text);
  bool Skip(std::int64_t count);
  // Skips the value of a field that the reader does not know. Groups are malformed here.
  bool SkipField(int wire_type, std::int64_t limit);

 private:
  std::vector<grpc::Slice> slices_;
  std::size_t slice_index_ = 0;
  std::size_t slice_offset_ = 0;
  std::int64_t position_ = 0;
  std::int64_t size_ = 0;
};

}  // namespace attnd::client
