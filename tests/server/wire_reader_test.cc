#include "server/wire_reader.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/wire_messages.h"

namespace attnd {
namespace {

using testing::SlicedMessage;
using std::string_literals::operator""s;

// Every slicing must give the same answer: a boundary may fall inside any tag, size or value.
template <typename Check>
void ForEachSlicing(const std::string& bytes, Check&& check) {
  for (std::size_t slice_bytes = 1; slice_bytes <= bytes.size() + 1; ++slice_bytes) {
    SCOPED_TRACE(slice_bytes);
    const auto message = SlicedMessage(bytes, slice_bytes);
    ASSERT_NE(message, nullptr);
    WireReader reader(*message);
    check(reader);
  }
}

TEST(WireReaderTest, ReadsTagsOfAllWireTypes) {
  ForEachSlicing("\x08\x11\x1A\x00\x25\xFA\xFF\xFF\xFF\x0F"s, [](WireReader& reader) {
    WireTag tag;
    WireReader content;
    ASSERT_TRUE(reader.ReadTag(tag));
    EXPECT_EQ(tag.field, 1U);
    EXPECT_EQ(tag.type, WireType::kVarint);
    ASSERT_TRUE(reader.ReadTag(tag));
    EXPECT_EQ(tag.field, 2U);
    EXPECT_EQ(tag.type, WireType::kFixed64);
    ASSERT_TRUE(reader.ReadTag(tag));
    EXPECT_EQ(tag.field, 3U);
    EXPECT_EQ(tag.type, WireType::kBytes);
    ASSERT_TRUE(reader.ReadBytes(content));
    EXPECT_TRUE(content.AtEnd());
    ASSERT_TRUE(reader.ReadTag(tag));
    EXPECT_EQ(tag.type, WireType::kFixed32);
    ASSERT_TRUE(reader.ReadTag(tag));
    EXPECT_EQ(tag.field, (1U << 29) - 1) << "the largest field number";
    EXPECT_TRUE(reader.AtEnd());
  });
}

TEST(WireReaderTest, RefusesFieldNumberZeroAndUnknownWireTypes) {
  for (const std::string& bytes : {"\x00"s, "\x02"s, "\x0E"s, "\x0F"s}) {
    const auto message = SlicedMessage(bytes, 1);
    WireReader reader(*message);
    WireTag tag;
    EXPECT_FALSE(reader.ReadTag(tag)) << ::testing::PrintToString(bytes);
  }
}

TEST(WireReaderTest, ReadsVarintsUpToTenBytes) {
  ForEachSlicing("\x96\x01\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01"s, [](WireReader& reader) {
    std::uint64_t value = 0;
    ASSERT_TRUE(reader.ReadVarint(value));
    EXPECT_EQ(value, 150U);
    ASSERT_TRUE(reader.ReadVarint(value));
    EXPECT_EQ(value, ~std::uint64_t{0});
    EXPECT_FALSE(reader.ReadVarint(value)) << "nothing is left";
  });
}

TEST(WireReaderTest, RefusesVarintsOfElevenBytesAndTruncatedOnes) {
  for (const std::string& bytes : {std::string(10, '\x80') + "\x01", std::string(3, '\x80')}) {
    const auto message = SlicedMessage(bytes, 4);
    WireReader reader(*message);
    std::uint64_t value = 0;
    EXPECT_FALSE(reader.ReadVarint(value));
  }
}

TEST(WireReaderTest, ReadsFixedValuesLittleEndianAcrossSlices) {
  ForEachSlicing("\x01\x02\x03\x04\x05\x06\x07\x88\x01\x02\x03"s, [](WireReader& reader) {
    std::uint64_t value = 0;
    ASSERT_TRUE(reader.ReadFixed64(value));
    EXPECT_EQ(value, 0x8807060504030201U);
    EXPECT_FALSE(reader.ReadFixed64(value)) << "three bytes are left";
  });
}

TEST(WireReaderTest, HandsOutBytesInPlace) {
  ForEachSlicing("\x05hello\x01!"s, [](WireReader& reader) {
    WireReader content;
    ASSERT_TRUE(reader.ReadBytes(content));
    EXPECT_EQ(content.remaining(), 5U);
    WireReader again = content;
    std::string copied;
    content.CopyTo(copied);
    EXPECT_EQ(copied, "hello");
    std::vector<ByteRange> pieces;
    again.AppendPieces(pieces);
    EXPECT_EQ(testing::BytesOf(pieces), "hello");
    for (const auto& piece : pieces) EXPECT_GT(piece.size, 0U);
    ASSERT_TRUE(reader.ReadBytes(content));
    EXPECT_EQ(content.remaining(), 1U);
    EXPECT_TRUE(reader.AtEnd());
  });
}

TEST(WireReaderTest, RefusesSizesBeyondTheMessage) {
  for (const std::string& bytes :
       {"\x06hello"s, "\xFF\xFF\xFF\xFF\x0Fx"s, "\xFF\xFF\xFF\xFF\x07x"s,
        "\x85\x80\x80\x80\x80\x00hello"s, "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01x"s}) {
    const auto message = SlicedMessage(bytes, 2);
    WireReader reader(*message);
    WireReader content;
    EXPECT_FALSE(reader.ReadBytes(content)) << ::testing::PrintToString(bytes);
  }
}

TEST(WireReaderTest, SkipsNestedGroupsAndRefusesUnbalancedOnes) {
  const auto skip = [](const std::string& bytes) {
    const auto message = SlicedMessage(bytes, 3);
    WireReader reader(*message);
    WireTag tag;
    return reader.ReadTag(tag) && reader.Skip(tag) && reader.AtEnd();
  };
  EXPECT_TRUE(skip("\x0B\x0C"s));
  EXPECT_TRUE(
      skip("\x0B\x13\x08\x05\x22\x03"
           "abc\x14\x0C"s));
  EXPECT_FALSE(skip("\x0B"s)) << "never closed";
  EXPECT_FALSE(skip("\x0C"s)) << "never opened";
  EXPECT_FALSE(skip("\x0B\x14"s)) << "closed by another field's end";
  EXPECT_TRUE(skip(std::string(100, '\x0B') + std::string(100, '\x0C')));
  EXPECT_FALSE(skip(std::string(101, '\x0B') + std::string(101, '\x0C'))) << "too deep";
  EXPECT_FALSE(skip(std::string(1'000'000, '\x0B'))) << "a bomb must not exhaust the stack";
}

TEST(WireReaderTest, AnEmptyMessageIsAtItsEnd) {
  const auto message = WireMessage::FromByteBuffer(grpc::ByteBuffer());
  ASSERT_NE(message, nullptr);
  EXPECT_EQ(message->size_bytes(), 0);
  EXPECT_TRUE(WireReader(*message).AtEnd());
}

}  // namespace
}  // namespace attnd
