// Replies written by hand must read back through protobuf as what was meant.
#include "server/reply_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "attnd/v1/attention.pb.h"
#include "server/error_status.h"
#include "tests/support/wire_messages.h"

namespace attnd {
namespace {

using ::testing::ElementsAre;

OutputBuffer Buffer(std::int64_t size_bytes, char fill) {
  OutputBuffer buffer;
  buffer.data = std::shared_ptr<std::byte[]>(new std::byte[size_bytes]);
  std::memset(buffer.data.get(), fill, size_bytes);
  buffer.size_bytes = size_bytes;
  return buffer;
}

AttentionResult ResultFor(const ReplyShape& shape) {
  AttentionResult result;
  if (shape.has_o) result.o = Buffer(shape.o_bytes(), 'o');
  if (shape.has_lse) result.lse = Buffer(shape.lse_bytes(), 'l');
  result.execution.kernels = {"cpu/prefill", "cpu/append"};
  result.execution.num_splits = 3;
  result.execution.batch_requests = 2;
  result.execution.batch_tokens = 77;
  result.execution.queue_time = std::chrono::microseconds(1500);
  result.execution.kernel_time = std::chrono::seconds(2);
  return result;
}

template <typename Proto>
Proto Decoded(const grpc::ByteBuffer& buffer) {
  Proto proto;
  EXPECT_TRUE(proto.ParseFromString(testing::BytesOf(buffer)));
  return proto;
}

TEST(ReplyEncoderTest, AttendRepliesReadBackThroughProtobuf) {
  // From empty through copied to referenced buffers.
  for (const std::int64_t rows : {0, 1, 7, 100, 5000}) {
    SCOPED_TRACE(rows);
    const ReplyShape shape{.has_o = true,
                           .has_lse = rows % 2 == 1,
                           .o_type = kernels::DataType::kBf16,
                           .rows = rows,
                           .num_heads = 3,
                           .head_dim = 40};
    const auto proto = Decoded<v1::AttendResponse>(EncodeAttendResponse(shape, ResultFor(shape)));
    EXPECT_EQ(proto.o().data_type(), v1::DATA_TYPE_BF16);
    EXPECT_THAT(proto.o().shape(), ElementsAre(rows, 3, 40));
    EXPECT_TRUE(proto.o().has_data());
    EXPECT_EQ(proto.o().data(), std::string(rows * 3 * 40 * 2, 'o'));
    ASSERT_EQ(proto.has_lse(), shape.has_lse);
    if (shape.has_lse) {
      EXPECT_EQ(proto.lse().data_type(), v1::DATA_TYPE_FP32);
      EXPECT_THAT(proto.lse().shape(), ElementsAre(rows, 3));
      EXPECT_EQ(proto.lse().data(), std::string(rows * 3 * 4, 'l'));
    }
    EXPECT_THAT(proto.execution().kernels(), ElementsAre("cpu/prefill", "cpu/append"));
    EXPECT_EQ(proto.execution().num_splits(), 3);
    EXPECT_EQ(proto.execution().batch_requests(), 2);
    EXPECT_EQ(proto.execution().batch_tokens(), 77);
    EXPECT_EQ(proto.execution().queue_time().nanos(), 1'500'000);
    EXPECT_EQ(proto.execution().kernel_time().seconds(), 2);
  }
}

TEST(ReplyEncoderTest, DecodeRepliesCarryIdFailuresAndStatus) {
  const ReplyShape shape{.has_o = true, .rows = 2, .num_heads = 4, .head_dim = 128};
  auto result = ResultFor(shape);
  result.failed_steps.push_back({1, InvalidField("steps[1].layer", "9", "0 to 3")});
  const auto unary = Decoded<v1::DecodeResponse>(
      EncodeDecodeResponse(~std::uint64_t{0}, ReplyTo::kUnary, shape, result));
  EXPECT_EQ(unary.request_id(), ~std::uint64_t{0});
  EXPECT_FALSE(unary.has_status());
  ASSERT_EQ(unary.failed_steps_size(), 1);
  EXPECT_EQ(unary.failed_steps(0).step_index(), 1);
  EXPECT_EQ(unary.failed_steps(0).status().code(), 3);
  EXPECT_EQ(unary.failed_steps(0).status().detail().field(), "steps[1].layer");
  EXPECT_EQ(unary.o().data(), std::string(2 * 4 * 128 * 4, 'o'));

  const auto stream =
      Decoded<v1::DecodeResponse>(EncodeDecodeResponse(5, ReplyTo::kStream, shape, result));
  EXPECT_TRUE(stream.has_status());
  EXPECT_EQ(stream.status().code(), 0);
}

TEST(ReplyEncoderTest, AppendOnlyRepliesHaveNoTensors) {
  const auto proto = Decoded<v1::DecodeResponse>(
      EncodeDecodeResponse(1, ReplyTo::kUnary, ReplyShape{}, ResultFor(ReplyShape{})));
  EXPECT_FALSE(proto.has_o());
  EXPECT_FALSE(proto.has_lse());
}

TEST(ReplyEncoderTest, FailuresOfAStreamCarryTheStatus) {
  const auto proto = Decoded<v1::DecodeResponse>(
      EncodeDecodeFailure(9, InvalidField("steps", "none", "1 step or more")));
  EXPECT_EQ(proto.request_id(), 9U);
  EXPECT_EQ(proto.status().code(), 3);
  EXPECT_EQ(proto.status().detail().reason(), v1::REASON_INVALID_FIELD);
  EXPECT_FALSE(proto.has_o());
}

TEST(ReplyEncoderTest, LargeOutputsAreReferencedAndFreedWithTheReply) {
  const ReplyShape shape{.has_o = true, .rows = 1000, .num_heads = 8, .head_dim = 64};
  std::weak_ptr<std::byte[]> buffer;
  {
    auto result = ResultFor(shape);
    buffer = result.o.data;
    const auto reply = EncodeAttendResponse(shape, result);
    result = {};
    EXPECT_FALSE(buffer.expired()) << "the reply holds it";
    std::vector<grpc::Slice> slices;
    ASSERT_TRUE(reply.Dump(&slices).ok());
    EXPECT_EQ(static_cast<const void*>(slices.back().begin()), buffer.lock().get());
  }
  EXPECT_TRUE(buffer.expired());
}

TEST(ReplyEncoderTest, ResultsOfAnotherSizeAreNotSent) {
  const ReplyShape shape{.has_o = true, .has_lse = true, .rows = 2, .num_heads = 1, .head_dim = 8};
  auto result = ResultFor(shape);
  EXPECT_TRUE(CheckResult(shape, result).ok());
  result.lse = {};
  EXPECT_EQ(CheckResult(shape, result).code(), absl::StatusCode::kInternal);
  result = ResultFor(shape);
  result.o.size_bytes -= 1;
  EXPECT_EQ(CheckResult(shape, result).code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace attnd
