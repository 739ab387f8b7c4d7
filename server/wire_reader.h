// Bounds-checked cursor over a protobuf message that lies in pieces, as gRPC delivers it.
//
// Accepts exactly what protobuf's own parser accepts: tags of up to 5 bytes, varints of up to 10,
// groups skipped to a depth of 100. Reads never leave the given range; a false return means that
// the bytes are malformed and leaves the cursor unusable. Nothing is copied but scalars, and what
// CopyTo is asked for.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/attention_request.h"

namespace attnd {

// The slices of one received message. Pieces point into them (short slices hold their bytes inside
// the slice object), so neither moves nor changes after construction.
class WireMessage {
 public:
  // Null where gRPC cannot hand out the bytes.
  static std::shared_ptr<const WireMessage> FromByteBuffer(const grpc::ByteBuffer& buffer);
  explicit WireMessage(std::vector<grpc::Slice> slices);
  WireMessage(const WireMessage&) = delete;
  WireMessage& operator=(const WireMessage&) = delete;

  const std::vector<ByteRange>& pieces() const { return pieces_; }
  std::int64_t size_bytes() const { return size_bytes_; }

 private:
  std::vector<grpc::Slice> slices_;
  std::vector<ByteRange> pieces_;
  std::int64_t size_bytes_ = 0;
};

enum class WireType : std::uint8_t {
  kVarint = 0,
  kFixed64 = 1,
  kBytes = 2,
  kStartGroup = 3,
  kEndGroup = 4,
  kFixed32 = 5,
};

struct WireTag {
  std::uint32_t field = 0;
  WireType type = WireType::kVarint;
};

class WireReader {
 public:
  WireReader() = default;  // at the end of nothing
  explicit WireReader(const WireMessage& message);

  bool AtEnd() const { return remaining_ == 0; }
  std::size_t remaining() const { return remaining_; }

  // False at field number 0 and at wire types that do not exist.
  bool ReadTag(WireTag& tag);
  bool ReadVarint(std::uint64_t& value);
  bool ReadFixed64(std::uint64_t& value);
  // Reads a length and hands out that many bytes as a cursor of its own; this one moves past them.
  bool ReadBytes(WireReader& content);
  // Skips the value of `tag`; a group with everything in it.
  bool Skip(const WireTag& tag);

  // What is left, as copies or as references into the message; the cursor moves to the end.
  void CopyTo(std::string& bytes);
  void AppendPieces(std::vector<ByteRange>& pieces);

 private:
  WireReader(const ByteRange* piece, std::size_t offset, std::size_t remaining);
  bool ReadByte(std::uint8_t& byte);
  bool ReadSize(std::size_t& size);
  bool ReadLittleEndian(int num_bytes, std::uint64_t& value);
  // Moves on by count <= remaining_ bytes, calling visit(data, size) for each piece passed.
  template <typename Visit>
  void Advance(std::size_t count, Visit&& visit);
  bool SkipGroup(std::uint32_t field);

  const ByteRange* piece_ = nullptr;  // valid while remaining_ > 0
  std::size_t offset_ = 0;            // in *piece_; below its size while remaining_ > 0
  std::size_t remaining_ = 0;
};

}  // namespace attnd
