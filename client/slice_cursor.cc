#include "client/slice_cursor.h"

#include <algorithm>
#include <cstring>

namespace attnd::client {
namespace {
constexpr int kMaxVarintBytes = 10;
constexpr std::uint64_t kMaxFieldNumber = (1U << 29) - 1;
}  // namespace

SliceCursor::SliceCursor(const grpc::ByteBuffer& wire) {
  if (!wire.Valid() || !wire.Dump(&slices_).ok()) slices_.clear();
  for (const grpc::Slice& slice : slices_) size_ += static_cast<std::int64_t>(slice.size());
}

bool SliceCursor::ReadBytes(std::int64_t count, std::byte* destination) {
  if (count < 0 || count > size_ - position_) return false;
  position_ += count;
  auto left = static_cast<std::size_t>(count);
  while (left > 0) {
    const grpc::Slice& slice = slices_[slice_index_];
    const std::size_t take = std::min(left, slice.size() - slice_offset_);
    if (destination != nullptr && take > 0) {
      std::memcpy(destination, slice.begin() + slice_offset_, take);
      destination += take;
    }
    left -= take;
    slice_offset_ += take;
    if (slice_offset_ == slice.size()) {
      ++slice_index_;
      slice_offset_ = 0;
    }
  }
  return true;
}

bool SliceCursor::Skip(std::int64_t count) { return ReadBytes(count, nullptr); }

bool SliceCursor::ReadString(std::int64_t count, std::string& text) {
  if (count < 0 || count > size_ - position_) return false;
  text.resize(static_cast<std::size_t>(count));
  return ReadBytes(count, reinterpret_cast<std::byte*>(text.data()));
}

bool SliceCursor::ReadVarint(std::uint64_t& value) {
  value = 0;
  for (int i = 0; i < kMaxVarintBytes; ++i) {
    std::byte byte{};
    if (!ReadBytes(1, &byte)) return false;
    const auto bits = std::to_integer<std::uint64_t>(byte);
    value |= (bits & 0x7FU) << (7 * i);
    if ((bits & 0x80U) == 0) return true;
  }
  return false;
}

bool SliceCursor::ReadTag(int& field, int& wire_type) {
  std::uint64_t tag = 0;
  if (!ReadVarint(tag)) return false;
  const std::uint64_t number = tag >> 3;
  if (number == 0 || number > kMaxFieldNumber) return false;
  field = static_cast<int>(number);
  wire_type = static_cast<int>(tag & 7U);
  return true;
}

bool SliceCursor::ReadLength(std::int64_t limit, std::int64_t& length) {
  std::uint64_t value = 0;
  if (!ReadVarint(value)) return false;
  if (position_ > limit || value > static_cast<std::uint64_t>(limit - position_)) return false;
  length = static_cast<std::int64_t>(value);
  return true;
}

bool SliceCursor::SkipField(int wire_type, std::int64_t limit) {
  std::uint64_t ignored = 0;
  std::int64_t length = 0;
  switch (wire_type) {
    case 0:
      return ReadVarint(ignored) && position_ <= limit;
    case 1:
      return Skip(8) && position_ <= limit;
    case 2:
      return ReadLength(limit, length) && Skip(length);
    case 5:
      return Skip(4) && position_ <= limit;
    default:
      return false;
  }
}

}  // namespace attnd::client
