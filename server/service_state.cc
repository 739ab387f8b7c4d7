#include "server/service_state.h"

#include <google/protobuf/util/time_util.h>
#include <grpc/support/time.h>

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "server/error_status.h"

namespace attnd {
namespace {

using google::protobuf::util::TimeUtil;

constexpr char kTenantHeader[] = "attnd-tenant";
constexpr char kTraceHeader[] = "traceparent";
constexpr char kDefaultTenant[] = "default";
// gRPC's timers count whole milliseconds, on both sides: a cancellation may come this much before
// the deadline of our own clock.
constexpr Clock::Duration kTimerRounding = std::chrono::milliseconds(2);
// A server is not ready for as long as its self-test runs, about a second.
constexpr Milliseconds kNotReadyRetry{500};

absl::Status Retryable(absl::StatusCode code, v1::Reason reason, Clock::Duration delay,
                       const std::string& message) {
  v1::ErrorDetail detail;
  detail.set_reason(reason);
  detail.set_step_index(-1);
  *detail.mutable_retry_delay() = TimeUtil::NanosecondsToDuration(delay.count());
  return ErrorStatus(code, detail, message);
}

// Empty where the client sent none.
std::string_view Header(const grpc::ServerContextBase& context, const char* name) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(name);
  if (found == metadata.end()) return {};
  return {found->second.data(), found->second.size()};
}

RequestLimits LimitsOf(const ServerConfig& config, const Scheduler& scheduler) {
  RequestLimits limits;
  limits.max_tokens = scheduler.GetSnapshot().max_tokens_effective;
  limits.max_steps = config.max_steps;
  limits.max_heads = config.max_heads;
  limits.max_layers = config.max_layers;
  limits.allow_comparison = config.allow_comparison;
  return limits;
}

}  // namespace

Clock::Duration TimeoutRounding(Clock::Duration left) {
  Clock::Duration step = std::chrono::milliseconds(1);
  while (left / step >= 1000) step *= 10;
  return step;
}

bool CancelledByDeadline(const CallTiming& timing, Clock::TimePoint now) {
  return timing.deadline != Clock::kNever &&
         timing.deadline - now <= timing.deadline_rounding + kTimerRounding;
}

ServiceState::ServiceState(const ServerConfig& config, const Clock& clock, Scheduler& scheduler,
                           Metrics& metrics)
    : config_(config),
      clock_(clock),
      scheduler_(scheduler),
      metrics_(metrics),
      limits_(LimitsOf(config, scheduler)),
      log_(clock, config.slow_request) {}

absl::Status ServiceState::Admit() {
  if (stopping_) {
    metrics_.RecordRejected(RejectReason::kDraining);
    // After the lame duck period the port is closed and the retry goes elsewhere.
    return Retryable(absl::StatusCode::kUnavailable, v1::REASON_DRAINING, config_.lame_duck,
                     "the server is shutting down");
  }
  if (!ready_) {
    metrics_.RecordRejected(RejectReason::kNotReady);
    return Retryable(absl::StatusCode::kUnavailable, v1::REASON_NOT_READY, kNotReadyRetry,
                     "the server is starting");
  }
  return absl::OkStatus();
}

absl::Status ServiceState::Admit(const grpc::ServerContextBase& context) {
  if (absl::Status status = Admit(); !status.ok()) return status;
  if (!config_.trust_tenant_header) return absl::OkStatus();
  const std::size_t count = context.client_metadata().count(kTenantHeader);
  if (count <= 1) return absl::OkStatus();
  return InvalidField(kTenantHeader, absl::StrCat(count, " headers"), "at most one");
}

absl::Status ServiceState::CheckUnaryLimit() {
  const bool full =
      config_.max_unary_in_flight != 0 && unary_in_flight_ >= config_.max_unary_in_flight;
  return full ? UnaryLimitReached() : absl::OkStatus();
}

absl::Status ServiceState::EnterUnary() {
  const std::int64_t in_flight = ++unary_in_flight_;
  if (config_.max_unary_in_flight == 0 || in_flight <= config_.max_unary_in_flight) {
    return absl::OkStatus();
  }
  --unary_in_flight_;
  return UnaryLimitReached();
}

void ServiceState::LeaveUnary(Clock::Duration duration) {
  --unary_in_flight_;
  // Lost updates of concurrent leavers only make the average smoother.
  const std::int64_t mean = mean_unary_ns_.load(std::memory_order_relaxed);
  mean_unary_ns_.store(mean + (duration.count() - mean) / 16, std::memory_order_relaxed);
}

absl::Status ServiceState::UnaryLimitReached() {
  metrics_.RecordRejected(RejectReason::kQueueFull);
  // With n calls in flight one ends every n-th part of a call's mean time.
  const Clock::Duration delay(mean_unary_ns_.load(std::memory_order_relaxed) /
                              std::max(config_.max_unary_in_flight, 1));
  return Retryable(absl::StatusCode::kResourceExhausted, v1::REASON_QUEUE_FULL,
                   std::max<Clock::Duration>(delay, std::chrono::milliseconds(1)),
                   absl::StrCat(config_.max_unary_in_flight,
                                " calls are in flight, the limit (--max_unary_in_flight)"));
}

absl::Status ServiceState::CheckMessageBytes(std::int64_t bytes) {
  if (bytes <= config_.max_message_bytes) return absl::OkStatus();
  metrics_.RecordRejected(RejectReason::kMessageSize);
  return ErrorStatus(absl::StatusCode::kResourceExhausted, v1::REASON_MESSAGE_SIZE, "",
                     absl::StrCat("got a message of ", bytes, " bytes, need at most ",
                                  config_.max_message_bytes, " (--max_message_bytes)"));
}

std::string ServiceState::Tenant(const grpc::ServerContextBase& context) const {
  if (!config_.trust_tenant_header) return kDefaultTenant;
  if (context.client_metadata().count(kTenantHeader) > 1) return "";
  const std::string_view tenant = Header(context, kTenantHeader);
  return std::string(tenant.empty() ? kDefaultTenant : tenant);
}

CallTiming ServiceState::Timing(const grpc::ServerContextBase& context) const {
  CallTiming timing;
  timing.received = clock_.Now();
  timing.default_timeout = config_.default_timeout;
  const gpr_timespec deadline = context.raw_deadline();
  if (gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) == 0) return timing;
  const gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
  if (gpr_time_cmp(left, gpr_inf_future(GPR_TIMESPAN)) == 0) return timing;
  const auto seconds = std::chrono::seconds(left.tv_sec);
  if (seconds < std::chrono::hours(24 * 365 * 100)) {
    const Clock::Duration time_left = seconds + std::chrono::nanoseconds(left.tv_nsec);
    timing.deadline = timing.received + time_left;
    timing.deadline_rounding = TimeoutRounding(time_left);
  }
  return timing;
}

void ServiceState::RecordAnswer(Method method, const absl::Status& status, Clock::Duration duration,
                                const grpc::ServerContextBase& context) {
  const auto code = static_cast<int>(status.code());
  metrics_.RecordRequest(method, code, duration);
  if (status.ok() && (config_.slow_request.count() == 0 || duration < config_.slow_request)) return;
  const std::string_view error(status.message().data(), status.message().size());
  log_.OnAnswer({method, code, duration, error, Header(context, kTraceHeader)});
}

absl::Status ServiceState::FinalStatus(absl::Status status, const CallTiming& timing) const {
  if (status.code() != absl::StatusCode::kCancelled || !CancelledByDeadline(timing, clock_.Now())) {
    return status;
  }
  return ErrorStatus(absl::StatusCode::kDeadlineExceeded, v1::REASON_DEADLINE, "",
                     "the call's deadline has passed");
}

}  // namespace attnd
