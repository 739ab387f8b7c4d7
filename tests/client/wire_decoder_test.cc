// The hand parser against the generated classes, and against bytes that no server should send.
#include "client/wire_decoder.h"

#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace attnd::client {
namespace {

// The text in slices of `piece` bytes: a boundary may fall anywhere.
grpc::ByteBuffer Sliced(const std::string& text, std::size_t piece) {
  std::vector<grpc::Slice> slices;
  for (std::size_t start = 0; start < text.size(); start += piece) {
    slices.emplace_back(text.substr(start, piece));
  }
  return {slices.data(), slices.size()};
}

v1::DecodeResponse FullResponse() {
  v1::DecodeResponse response;
  response.set_request_id(1ULL << 60);
  response.mutable_status()->set_code(8);
  response.mutable_status()->mutable_detail()->set_reason(v1::REASON_QUEUE_FULL);
  response.mutable_o()->set_data_type(v1::DATA_TYPE_FP16);
  for (const int dimension : {2, 3, 200}) response.mutable_o()->add_shape(dimension);
  std::string data(2 * 3 * 200 * 2, '\0');
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 31);
  response.mutable_o()->set_data(data);
  response.mutable_lse()->set_data_type(v1::DATA_TYPE_FP32);
  response.mutable_lse()->add_shape(1);
  response.mutable_lse()->set_data("abcd");
  for (int i = 0; i < 2; ++i) {
    auto* failure = response.add_failed_steps();
    failure->set_step_index(i);
    failure->mutable_status()->set_message("gone");
  }
  response.mutable_execution()->add_kernels("cpu/decode");
  response.mutable_execution()->mutable_kernel_time()->set_nanos(77);
  return response;
}

TEST(WireDecoderTest, ReadsWhatGeneratedCodeWritesAtEverySliceBoundary) {
  const v1::DecodeResponse response = FullResponse();
  const std::string text = response.SerializeAsString();
  for (const std::size_t piece : {std::size_t{1}, std::size_t{2}, std::size_t{7}, text.size()}) {
    const auto reply = DecodeDecodeReply(Sliced(text, piece), TensorBytesPolicy::kCopy);
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->request_id, response.request_id());
    ASSERT_TRUE(reply->status.has_value());
    EXPECT_EQ(reply->status->detail().reason(), v1::REASON_QUEUE_FULL);
    EXPECT_EQ(reply->result.o.shape, (std::vector<std::int64_t>{2, 3, 200}));
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(reply->result.o.data.get()),
                          static_cast<std::size_t>(reply->result.o.size_bytes)),
              response.o().data());
    EXPECT_EQ(reply->result.lse.size_bytes, 4);
    ASSERT_EQ(reply->result.failed_steps.size(), 2U);
    EXPECT_EQ(reply->result.failed_steps[1].step_index(), 1);
    EXPECT_EQ(reply->result.execution.kernel_time().nanos(), 77);
  }
}

TEST(WireDecoderTest, SkippingKeepsShapeAndSizeOnly) {
  const auto reply =
      DecodeDecodeReply(Sliced(FullResponse().SerializeAsString(), 64), TensorBytesPolicy::kSkip);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->result.o.data, nullptr);
  EXPECT_EQ(reply->result.o.size_bytes, 2400);
  EXPECT_EQ(reply->result.execution.kernels(0), "cpu/decode");
}

TEST(WireDecoderTest, AttendReplyMatchesTheGeneratedMessage) {
  v1::AttendResponse response;
  *response.mutable_o() = FullResponse().o();
  *response.mutable_execution() = FullResponse().execution();
  const auto result =
      DecodeAttendReply(Sliced(response.SerializeAsString(), 5), TensorBytesPolicy::kCopy);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->o.data_type, v1::DATA_TYPE_FP16);
  EXPECT_FALSE(result->lse.present());
  EXPECT_TRUE(
      google::protobuf::util::MessageDifferencer::Equals(result->execution, response.execution()));
}

TEST(WireDecoderTest, UnknownFieldsOfANewerServerAreSkipped) {
  // Field 200 in every wire type that is still in use.
  const std::string unknown(
      "\xC0\x0C\x05"
      "\xC1\x0C"
      "12345678"
      "\xC2\x0C\x03"
      "abc"
      "\xC5\x0C"
      "1234",
      25);
  const std::string text = unknown + FullResponse().SerializeAsString() + unknown;
  const auto reply = DecodeDecodeReply(Sliced(text, 3), TensorBytesPolicy::kCopy);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->result.o.size_bytes, 2400);
}

TEST(WireDecoderTest, TensorsWhoseBytesDoNotFitTheirShapeAreRefused) {
  v1::DecodeResponse response = FullResponse();
  response.mutable_o()->add_shape(2);
  EXPECT_EQ(DecodeDecodeReply(Sliced(response.SerializeAsString(), 64), TensorBytesPolicy::kCopy)
                .status()
                .code(),
            absl::StatusCode::kInternal);
  response = FullResponse();
  response.mutable_o()->clear_data_type();
  EXPECT_FALSE(
      DecodeDecodeReply(Sliced(response.SerializeAsString(), 64), TensorBytesPolicy::kCopy).ok());
  response = FullResponse();
  response.mutable_o()->set_shape(0, 1LL << 62);
  response.mutable_o()->set_shape(1, 1LL << 62);
  EXPECT_FALSE(
      DecodeDecodeReply(Sliced(response.SerializeAsString(), 64), TensorBytesPolicy::kCopy).ok());
}

// Whatever the bytes, the parser ends with a status: no crash, no read past the end (ASan), and
// every prefix that is cut inside a field is refused.
TEST(WireDecoderTest, TruncatedAndRandomBytesAreRefusedOrRead) {
  const std::string text = FullResponse().SerializeAsString();
  std::size_t refused = 0;
  for (std::size_t length = 0; length < text.size(); ++length) {
    const auto reply =
        DecodeDecodeReply(Sliced(text.substr(0, length), 11), TensorBytesPolicy::kCopy);
    v1::DecodeResponse generated;
    if (!generated.ParseFromString(text.substr(0, length))) {
      EXPECT_FALSE(reply.ok()) << length;
      ++refused;
    }
  }
  EXPECT_GT(refused, text.size() / 2);
  // Damaged text fields are part of the noise; protobuf would log each one.
  const google::protobuf::LogSilencer silencer;
  std::mt19937 random(3);
  for (int round = 0; round < 20'000; ++round) {
    std::string noise = text;
    for (int flips = 0; flips < 3; ++flips) {
      noise[random() % noise.size()] = static_cast<char>(random());
    }
    const auto reply =
        DecodeDecodeReply(Sliced(noise, 1 + random() % 50), TensorBytesPolicy::kCopy);
    if (!reply.ok() || !reply->result.o.present()) continue;
    // What is accepted is consistent.
    const auto bytes = TensorBytes(reply->result.o.data_type, reply->result.o.shape);
    ASSERT_TRUE(bytes.ok());
    EXPECT_EQ(*bytes, reply->result.o.size_bytes);
  }
}

TEST(WireDecoderTest, AnEmptyReplyIsAnEmptyResult) {
  const auto reply = DecodeDecodeReply(grpc::ByteBuffer(), TensorBytesPolicy::kCopy);
  ASSERT_TRUE(reply.ok());
  EXPECT_FALSE(reply->result.o.present());
}

}  // namespace
}  // namespace attnd::client
