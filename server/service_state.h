// What all calls of the attention service share: admission, limits, tenant, deadlines, accounts.
// Thread-safe; outlives every call.
#pragma once

#include <grpcpp/server_context.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "server/clock.h"
#include "server/metrics.h"
#include "server/open_streams.h"
#include "server/request_log.h"
#include "server/request_validation.h"
#include "server/scheduler.h"
#include "server/server_config.h"
#include "server/spare_poller.h"

namespace attnd {

// What a timeout of a call that arrives as `left` may have been rounded up by: gRPC's core keeps
// two to three digits of it (whole milliseconds below a second, ten of them below ten, and so on).
Clock::Duration TimeoutRounding(Clock::Duration left);
// Whether a call that was cancelled at `now` missed its deadline: a client resets it when the
// deadline passes on its own clock, and says no more than that it is cancelled.
bool CancelledByDeadline(const CallTiming& timing, Clock::TimePoint now);

class ServiceState {
 public:
  // All references outlive this.
  ServiceState(const ServerConfig& config, const Clock& clock, Scheduler& scheduler,
               Metrics& metrics);

  const ServerConfig& config() const { return config_; }
  const Clock& clock() const { return clock_; }
  Scheduler& scheduler() { return scheduler_; }
  Metrics& metrics() { return metrics_; }
  const RequestLimits& limits() const { return limits_; }

  // Calls are answered UNAVAILABLE before SetReady and after BeginStop.
  void SetReady() { ready_ = true; }
  void BeginStop() { stopping_ = true; }
  // Counts a refusal in attnd_rejected_total.
  absl::Status Admit();
  // Refuses a call that could be of two tenants, too: a proxy that adds its header to the client's
  // own would let the client choose.
  absl::Status Admit(const grpc::ServerContextBase& context);

  // Attend and Decode calls that have their message, --max_unary_in_flight of them: so clients that
  // send none cannot keep others out. Not OK: refuse the call, the refusal is counted. Every OK of
  // EnterUnary is followed by one LeaveUnary.
  absl::Status CheckUnaryLimit();
  absl::Status EnterUnary();
  void LeaveUnary(Clock::Duration duration);

  // RESOURCE_EXHAUSTED for a message of more than --max_message_bytes, counted as rejected.
  absl::Status CheckMessageBytes(std::int64_t bytes);

  // Empty, which no tenant is called, where the call names several.
  std::string Tenant(const grpc::ServerContextBase& context) const;
  CallTiming Timing(const grpc::ServerContextBase& context) const;

  // The status that a call ends with: a cancellation that the call's deadline caused is
  // DEADLINE_EXCEEDED, as the client sees it.
  absl::Status FinalStatus(absl::Status status, const CallTiming& timing) const;

  // Counts the answer and logs it where it failed or was slow. Once a call or stream message.
  void RecordAnswer(Method method, const absl::Status& status, Clock::Duration duration,
                    const grpc::ServerContextBase& context);

  SparePoller& spare_poller() { return spare_poller_; }
  OpenStreams& streams() { return streams_; }
  const OpenStreams& streams() const { return streams_; }
  // Call objects that exist. 0 when nothing is open: a call that is never answered shows here.
  std::int64_t live_calls() const { return live_calls_; }

 private:
  absl::Status UnaryLimitReached();

  friend class LiveCall;

  const ServerConfig& config_;
  const Clock& clock_;
  Scheduler& scheduler_;
  Metrics& metrics_;
  const RequestLimits limits_;
  std::atomic<bool> ready_{false}, stopping_{false};
  std::atomic<std::int64_t> unary_in_flight_{0};
  std::atomic<std::int64_t> mean_unary_ns_{0};  // moving average, for the retry delay
  std::atomic<std::int64_t> live_calls_{0};
  OpenStreams streams_;
  SparePoller spare_poller_;
  RequestLog log_;
};

// Member of every call object.
class LiveCall {
 public:
  explicit LiveCall(ServiceState& state) : state_(state) { ++state_.live_calls_; }
  ~LiveCall() { --state_.live_calls_; }
  LiveCall(const LiveCall&) = delete;
  LiveCall& operator=(const LiveCall&) = delete;

 private:
  ServiceState& state_;
};

}  // namespace attnd
