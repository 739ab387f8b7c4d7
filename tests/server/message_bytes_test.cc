#include "server/message_bytes.h"

#include <gtest/gtest.h>

#include <string>

#include "grpc/health/v1/health.pb.h"

namespace attnd {
namespace {

using grpc::health::v1::HealthCheckRequest;

// In two slices where there are bytes for them.
grpc::ByteBuffer Sliced(const std::string& bytes) {
  const std::size_t half = bytes.size() / 2;
  const grpc::Slice slices[] = {grpc::Slice(bytes.substr(0, half)),
                                grpc::Slice(bytes.substr(half))};
  return {slices, 2};
}

TEST(MessageBytesTest, WhatIsSerializedIsParsedAgain) {
  HealthCheckRequest sent;
  sent.set_service("attnd.v1.AttentionService");
  HealthCheckRequest received;
  ASSERT_TRUE(ParseMessage(SerializeMessage(sent), received));
  EXPECT_EQ(received.service(), sent.service());
  ASSERT_TRUE(ParseMessage(Sliced(sent.SerializeAsString()), received));
  EXPECT_EQ(received.service(), sent.service());
}

TEST(MessageBytesTest, NoBytesAreAnEmptyMessageWhateverStoodThere) {
  for (const grpc::ByteBuffer& wire : {grpc::ByteBuffer(), Sliced("")}) {
    HealthCheckRequest request;
    request.set_service("before");
    ASSERT_TRUE(ParseMessage(wire, request));
    EXPECT_EQ(request.service(), "");
  }
}

TEST(MessageBytesTest, BytesThatAreNoMessageAreInvalid) {
  HealthCheckRequest request;
  for (const char* bytes : {"\x0A\xFF", "\x0A\x05half", "\x0C", "\x0A\x01\xFF"}) {
    EXPECT_FALSE(ParseMessage(Sliced(bytes), request)) << ::testing::PrintToString(bytes);
    const grpc::Status status = ParseNameMessage(Sliced(bytes), request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(status.error_message(), "HealthCheckRequest: not a valid protobuf message");
  }
}

TEST(MessageBytesTest, NameMessagesAreBounded) {
  HealthCheckRequest request;
  const std::string largest = "\x0A\xFD\x0F" + std::string(kMaxNameMessageBytes - 3, 'x');
  EXPECT_TRUE(ParseNameMessage(Sliced(largest), request).ok());
  const grpc::Status status = ParseNameMessage(Sliced(largest + "x"), request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "HealthCheckRequest: got 2049 bytes, need at most 2048");
}

}  // namespace
}  // namespace attnd
