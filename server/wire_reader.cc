#include "server/wire_reader.h"

#include <algorithm>
#include <array>
#include <limits>

namespace attnd {
namespace {

constexpr int kMaxTagBytes = 5;
constexpr int kMaxSizeBytes = 5;
constexpr int kMaxVarintBytes = 10;
// protobuf's recursion limit, groups included.
constexpr std::size_t kMaxGroupDepth = 100;
// protobuf refuses longer fields, so that sizes fit an int with room for its own slop bytes.
constexpr std::uint64_t kMaxFieldBytes = std::numeric_limits<std::int32_t>::max() - 16;

}  // namespace

std::shared_ptr<const WireMessage> WireMessage::FromByteBuffer(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  // A message of no bytes may arrive without a buffer.
  if (buffer.Valid() && !buffer.Dump(&slices).ok()) return nullptr;
  return std::make_shared<const WireMessage>(std::move(slices));
}

WireMessage::WireMessage(std::vector<grpc::Slice> slices) : slices_(std::move(slices)) {
  pieces_.reserve(slices_.size());
  for (const grpc::Slice& slice : slices_) {
    if (slice.size() == 0) continue;  // the reader relies on pieces that are not empty
    pieces_.push_back({reinterpret_cast<const std::byte*>(slice.begin()), slice.size()});
    size_bytes_ += static_cast<std::int64_t>(slice.size());
  }
}

WireReader::WireReader(const WireMessage& message)
    : WireReader(message.pieces().data(), 0, static_cast<std::size_t>(message.size_bytes())) {}

WireReader::WireReader(const ByteRange* piece, std::size_t offset, std::size_t remaining)
    : piece_(piece), offset_(offset), remaining_(remaining) {}

template <typename Visit>
void WireReader::Advance(std::size_t count, Visit&& visit) {
  remaining_ -= count;
  while (count > 0) {
    const std::size_t here = std::min(count, piece_->size - offset_);
    visit(piece_->data + offset_, here);
    offset_ += here;
    count -= here;
    if (offset_ == piece_->size) {
      ++piece_;
      offset_ = 0;
    }
  }
}

bool WireReader::ReadByte(std::uint8_t& byte) {
  if (remaining_ == 0) return false;
  byte = static_cast<std::uint8_t>(piece_->data[offset_]);
  --remaining_;
  if (++offset_ == piece_->size) {
    ++piece_;
    offset_ = 0;
  }
  return true;
}

bool WireReader::ReadVarint(std::uint64_t& value) {
  value = 0;
  for (int i = 0; i < kMaxVarintBytes; ++i) {
    std::uint8_t byte = 0;
    if (!ReadByte(byte)) return false;
    value |= std::uint64_t{byte & 0x7FU} << (7 * i);  // what passes bit 63 is lost, as in protobuf
    if (byte < 0x80) return true;
  }
  return false;
}

bool WireReader::ReadTag(WireTag& tag) {
  std::uint32_t value = 0;
  for (int i = 0; i < kMaxTagBytes; ++i) {
    std::uint8_t byte = 0;
    if (!ReadByte(byte)) return false;
    value |= (std::uint32_t{byte} & 0x7FU) << (7 * i);
    if (byte < 0x80) {
      tag.field = value >> 3;
      tag.type = static_cast<WireType>(value & 7U);
      return tag.field != 0 && (value & 7U) <= 5;
    }
  }
  return false;
}

bool WireReader::ReadLittleEndian(int num_bytes, std::uint64_t& value) {
  value = 0;
  for (int i = 0; i < num_bytes; ++i) {
    std::uint8_t byte = 0;
    if (!ReadByte(byte)) return false;
    value |= std::uint64_t{byte} << (8 * i);
  }
  return true;
}

bool WireReader::ReadFixed64(std::uint64_t& value) { return ReadLittleEndian(8, value); }

bool WireReader::ReadSize(std::size_t& size) {
  std::uint64_t value = 0;
  for (int i = 0; i < kMaxSizeBytes; ++i) {
    std::uint8_t byte = 0;
    if (!ReadByte(byte)) return false;
    value |= std::uint64_t{byte & 0x7FU} << (7 * i);
    if (byte < 0x80) {
      size = static_cast<std::size_t>(value);
      return value <= kMaxFieldBytes;
    }
  }
  return false;
}

bool WireReader::ReadBytes(WireReader& content) {
  std::size_t size = 0;
  if (!ReadSize(size) || size > remaining_) return false;
  content = WireReader(piece_, offset_, size);
  Advance(size, [](const std::byte*, std::size_t) {});
  return true;
}

bool WireReader::Skip(const WireTag& tag) {
  std::uint64_t scalar = 0;
  WireReader content;
  switch (tag.type) {
    case WireType::kVarint:
      return ReadVarint(scalar);
    case WireType::kFixed64:
      return ReadFixed64(scalar);
    case WireType::kFixed32:
      return ReadLittleEndian(4, scalar);
    case WireType::kBytes:
      return ReadBytes(content);
    case WireType::kStartGroup:
      return SkipGroup(tag.field);
    case WireType::kEndGroup:
      return false;  // of a group that was never opened
  }
  return false;
}

// Iterative, so that a message of nothing but group starts cannot exhaust the stack.
bool WireReader::SkipGroup(std::uint32_t field) {
  std::array<std::uint32_t, kMaxGroupDepth> open{};
  std::size_t depth = 0;
  open[depth++] = field;
  while (depth > 0) {
    WireTag tag;
    if (!ReadTag(tag)) return false;
    if (tag.type == WireType::kStartGroup) {
      if (depth == open.size()) return false;
      open[depth++] = tag.field;
    } else if (tag.type == WireType::kEndGroup) {
      if (open[depth - 1] != tag.field) return false;
      --depth;
    } else if (!Skip(tag)) {
      return false;
    }
  }
  return true;
}

void WireReader::CopyTo(std::string& bytes) {
  bytes.reserve(bytes.size() + remaining_);
  Advance(remaining_, [&bytes](const std::byte* data, std::size_t size) {
    bytes.append(reinterpret_cast<const char*>(data), size);
  });
}

void WireReader::AppendPieces(std::vector<ByteRange>& pieces) {
  Advance(remaining_, [&pieces](const std::byte* data, std::size_t size) {
    pieces.push_back({data, size});
  });
}

}  // namespace attnd
