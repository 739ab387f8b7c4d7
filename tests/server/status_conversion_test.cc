#include "server/status_conversion.h"

#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <string>

#include "attnd/v1/rpc_status.pb.h"
#include "server/error_status.h"

namespace attnd {
namespace {

absl::Status QueueFull(std::int64_t seconds, int nanos) {
  v1::ErrorDetail detail;
  detail.set_reason(v1::REASON_QUEUE_FULL);
  detail.set_step_index(-1);
  detail.mutable_retry_delay()->set_seconds(seconds);
  detail.mutable_retry_delay()->set_nanos(nanos);
  return ErrorStatus(absl::StatusCode::kResourceExhausted, detail, "the queue is full");
}

TEST(StatusConversionTest, CarriesTheDetailAsTheOneAny) {
  const grpc::Status status = ToGrpcStatus(InvalidField("q.shape", "rank 2", "rank 3"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "q.shape: got rank 2, need rank 3");
  v1::RpcStatus envelope;
  ASSERT_TRUE(envelope.ParseFromString(status.error_details()));
  EXPECT_EQ(envelope.code(), 3);
  EXPECT_EQ(envelope.message(), status.error_message());
  ASSERT_EQ(envelope.details_size(), 1);
  v1::ErrorDetail detail;
  ASSERT_TRUE(envelope.details(0).UnpackTo(&detail));
  EXPECT_EQ(detail.reason(), v1::REASON_INVALID_FIELD);
  EXPECT_EQ(detail.field(), "q.shape");
  EXPECT_EQ(detail.step_index(), -1);
}

TEST(StatusConversionTest, OkIsBare) {
  const grpc::Status status = ToGrpcStatus(absl::OkStatus());
  EXPECT_TRUE(status.ok());
  EXPECT_TRUE(status.error_details().empty());
}

TEST(StatusConversionTest, PushbackIsTheRetryDelayRoundedUp) {
  EXPECT_EQ(RetryPushback(QueueFull(1, 500'000'000)), "1500");
  EXPECT_EQ(RetryPushback(QueueFull(0, 1)), "0") << "below the microsecond of a Duration's count";
  EXPECT_EQ(RetryPushback(QueueFull(0, 1000)), "1");
  EXPECT_EQ(RetryPushback(QueueFull(0, 0)), "0") << "at once";
  EXPECT_EQ(RetryPushback(InvalidField("q", "a", "b")), "-1") << "final";
}

TEST(StatusConversionTest, LongMessagesAreCutSoThatTheHeaderFits) {
  const grpc::Status status = ToGrpcStatus(absl::UnimplementedError(std::string(100'000, 'x')));
  EXPECT_LT(status.error_message().size(), 1100U);
  EXPECT_LT(status.error_details().size(), 2000U);
}

TEST(StatusConversionTest, EveryCodeSurvives) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "text");
    EXPECT_EQ(static_cast<int>(ToGrpcStatus(status).error_code()), code);
    EXPECT_EQ(ToProtoStatus(status).code(), code);
    EXPECT_EQ(ErrorDetailOf(status).step_index(), -1);
  }
  EXPECT_EQ(ErrorDetailOf(absl::DeadlineExceededError("")).reason(), v1::REASON_DEADLINE);
}

TEST(StatusConversionTest, DetailsRoundTripThroughAbslStatus) {
  v1::ErrorDetail detail;
  detail.set_reason(v1::REASON_POSITION);
  detail.set_field("steps[3].position");
  detail.set_step_index(3);
  detail.set_cached_tokens(42);
  const auto status = ErrorStatus(absl::StatusCode::kFailedPrecondition, detail, "gap");
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(ErrorDetailOf(status), detail));
  const auto proto = ToProtoStatus(status);
  EXPECT_EQ(proto.code(), 9);
  EXPECT_EQ(proto.message(), "gap");
  EXPECT_EQ(proto.detail().cached_tokens(), 42);
}

}  // namespace
}  // namespace attnd
