#include "client/call_error.h"

#include <gtest/gtest.h>

namespace attnd::client {
namespace {

TEST(CallErrorTest, DetailsSurviveTheStatus) {
  v1::ErrorDetail detail;
  detail.set_reason(v1::REASON_STALE_EPOCH);
  detail.set_step_index(2);
  detail.set_epoch(7);
  const absl::Status status =
      StatusWithDetail(absl::StatusCode::kFailedPrecondition, detail, "late");
  const CallError error = DescribeError(status);
  EXPECT_EQ(error.code, absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(error.reason, v1::REASON_STALE_EPOCH);
  EXPECT_EQ(error.detail.epoch(), 7U);
  EXPECT_EQ(error.message, "late");
  EXPECT_EQ(ErrorText(status), "FAILED_PRECONDITION/STALE_EPOCH: late");
}

TEST(CallErrorTest, TransportFailuresHaveNoReason) {
  const absl::Status status = absl::UnavailableError("refused");
  EXPECT_FALSE(DetailOf(status).has_value());
  EXPECT_EQ(DescribeError(status).detail.step_index(), -1);
  EXPECT_EQ(ErrorText(status), "UNAVAILABLE: refused");
}

TEST(CallErrorTest, ReasonsOfANewerServerStillHaveAName) {
  v1::ErrorDetail detail;
  detail.set_reason(static_cast<v1::Reason>(900));
  EXPECT_EQ(ErrorName(StatusWithDetail(absl::StatusCode::kAborted, detail, "")), "ABORTED/900");
}

TEST(CallErrorTest, ProtoStatusesKeepCodeTextAndDetail) {
  v1::Status proto;
  proto.set_code(5);
  proto.set_message("gone");
  proto.mutable_detail()->set_reason(v1::REASON_EXPIRED);
  EXPECT_EQ(ErrorText(StatusFromProto(proto)), "NOT_FOUND/EXPIRED: gone");
  EXPECT_TRUE(StatusFromProto(v1::Status()).ok());
}

}  // namespace
}  // namespace attnd::client
