#include "client/retry_policy.h"

#include <gtest/gtest.h>

#include "client/call_error.h"

namespace attnd::client {
namespace {

using std::chrono::milliseconds;

absl::Status Failure(absl::StatusCode code, v1::Reason reason,
                     std::optional<milliseconds> delay = {}) {
  v1::ErrorDetail detail;
  detail.set_reason(reason);
  if (delay) {
    detail.mutable_retry_delay()->set_seconds(delay->count() / 1000);
    detail.mutable_retry_delay()->set_nanos(static_cast<int>(delay->count() % 1000) * 1'000'000);
  }
  return StatusWithDetail(code, detail, "scripted");
}

RetryOptions NoJitter() {
  RetryOptions options;
  options.jitter = 0;
  return options;
}

TEST(RetryPolicyTest, TransportFailuresBackOffExponentiallyUpToTheLimit) {
  RetryOptions options = NoJitter();
  options.initial_backoff = milliseconds(100);
  options.backoff_multiplier = 2;
  options.max_backoff = milliseconds(350);
  const absl::Status lost = absl::UnavailableError("connection refused");
  EXPECT_EQ(RetryDelay(options, {lost, {}, 1}, 0), milliseconds(100));
  EXPECT_EQ(RetryDelay(options, {lost, {}, 2}, 0), milliseconds(200));
  EXPECT_EQ(RetryDelay(options, {lost, {}, 3}, 0), milliseconds(350));
  EXPECT_EQ(RetryDelay(options, {lost, {}, 9}, 0), milliseconds(350));
}

TEST(RetryPolicyTest, OnlyStatusesThatTheContractCallsRetryableAreRepeated) {
  const RetryOptions options;
  for (const auto code : {absl::StatusCode::kInvalidArgument, absl::StatusCode::kNotFound,
                          absl::StatusCode::kAlreadyExists, absl::StatusCode::kFailedPrecondition,
                          absl::StatusCode::kOutOfRange, absl::StatusCode::kDeadlineExceeded,
                          absl::StatusCode::kCancelled, absl::StatusCode::kUnimplemented,
                          absl::StatusCode::kInternal, absl::StatusCode::kPermissionDenied,
                          absl::StatusCode::kUnauthenticated, absl::StatusCode::kUnknown}) {
    // Not even where a confused peer names a delay.
    EXPECT_FALSE(RetryDelay(options, {absl::Status(code, ""), 10, 1}, 0).has_value())
        << absl::StatusCodeToString(code);
  }
  // Without a delay the service says: do not retry.
  EXPECT_FALSE(RetryDelay(options, {absl::ResourceExhaustedError("too large"), {}, 1}, 0));
  EXPECT_FALSE(RetryDelay(options, {absl::AbortedError(""), {}, 1}, 0));
  EXPECT_FALSE(RetryDelay(
      options, {Failure(absl::StatusCode::kUnavailable, v1::REASON_DRAINING), {}, 1}, 0));
}

TEST(RetryPolicyTest, RequestedDelaysAreObeyed) {
  const RetryOptions options = NoJitter();
  const absl::Status full =
      Failure(absl::StatusCode::kResourceExhausted, v1::REASON_QUEUE_FULL, milliseconds(1500));
  EXPECT_EQ(RetryDelay(options, {full, {}, 1}, 0), milliseconds(1500));
  EXPECT_EQ(RetryDelay(options, {full, 1700, 1}, 0), milliseconds(1700));
  EXPECT_EQ(RetryDelay(options, {full, 1200, 1}, 0), milliseconds(1500));
  EXPECT_EQ(RetryDelay(options, {absl::AbortedError(""), 5, 1}, 0), milliseconds(5));
}

TEST(RetryPolicyTest, NegativePushbackIsFinal) {
  const RetryOptions options;
  EXPECT_FALSE(RetryDelay(options, {absl::UnavailableError(""), -1, 1}, 0));
  const absl::Status full =
      Failure(absl::StatusCode::kResourceExhausted, v1::REASON_QUEUE_FULL, milliseconds(10));
  EXPECT_FALSE(RetryDelay(options, {full, -1, 1}, 0));
}

TEST(RetryPolicyTest, JitterNeverShortensARequestedDelay) {
  RetryOptions options;
  options.jitter = 0.5;
  const absl::Status full =
      Failure(absl::StatusCode::kResourceExhausted, v1::REASON_QUEUE_FULL, milliseconds(100));
  EXPECT_EQ(RetryDelay(options, {full, {}, 1}, 0), milliseconds(100));
  EXPECT_EQ(RetryDelay(options, {full, {}, 1}, 0.5), milliseconds(125));
}

TEST(RetryPolicyTest, AbsurdDelaysNeitherOverflowNorGetThrough) {
  RetryPolicy policy(NoJitter(), 1);
  v1::ErrorDetail detail;
  detail.mutable_retry_delay()->set_seconds(std::numeric_limits<std::int64_t>::max());
  detail.mutable_retry_delay()->set_nanos(-5);
  const absl::Status status =
      StatusWithDetail(absl::StatusCode::kResourceExhausted, detail, "scripted");
  const TimePoint now(std::chrono::hours(5));
  const std::int64_t pushback = std::numeric_limits<std::int64_t>::max();
  EXPECT_FALSE(policy.NextAttempt({status, pushback, 1}, now, now + std::chrono::hours(1)));
  EXPECT_EQ(policy.NextAttempt({status, pushback, 1}, now, TimeSource::kNever),
            now + std::chrono::hours(24));
}

TEST(RetryPolicyTest, NoAttemptStartsAtOrPastTheDeadline) {
  RetryPolicy policy(NoJitter(), 1);
  const TimePoint now(std::chrono::hours(5));
  const FailedAttempt attempt{absl::UnavailableError(""), 100, 1};
  EXPECT_FALSE(policy.NextAttempt(attempt, now, now + milliseconds(100)));
  EXPECT_EQ(policy.NextAttempt(attempt, now, now + milliseconds(101)), now + milliseconds(100));
}

TEST(RetryPolicyTest, AttemptsAreCounted) {
  RetryOptions options;
  options.max_attempts = 3;
  EXPECT_TRUE(RetryDelay(options, {absl::UnavailableError(""), {}, 2}, 0));
  EXPECT_FALSE(RetryDelay(options, {absl::UnavailableError(""), {}, 3}, 0));
}

TEST(RetryPolicyTest, BudgetEndsRepetitionsAndIsEarnedBack) {
  RetryOptions options = NoJitter();
  options.budget_tokens = 2;
  options.tokens_per_success = 0.5;
  options.tokens_per_second = 1;
  RetryPolicy policy(options, 1);
  const TimePoint now(std::chrono::hours(5));
  const FailedAttempt attempt{absl::UnavailableError(""), {}, 1};
  EXPECT_TRUE(policy.NextAttempt(attempt, now, TimeSource::kNever));
  EXPECT_TRUE(policy.NextAttempt(attempt, now, TimeSource::kNever));
  EXPECT_FALSE(policy.NextAttempt(attempt, now, TimeSource::kNever));
  policy.OnSuccess();
  EXPECT_FALSE(policy.NextAttempt(attempt, now, TimeSource::kNever));
  policy.OnSuccess();
  EXPECT_TRUE(policy.NextAttempt(attempt, now, TimeSource::kNever));
  EXPECT_FALSE(policy.NextAttempt(attempt, now, TimeSource::kNever));
  EXPECT_TRUE(policy.NextAttempt(attempt, now + std::chrono::seconds(1), TimeSource::kNever));
}

}  // namespace
}  // namespace attnd::client
