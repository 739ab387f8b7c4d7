// When a failed call is tried again.
//
// A call is repeated only where the service allows it: UNAVAILABLE from the transport, and
// RESOURCE_EXHAUSTED, UNAVAILABLE or ABORTED whose answer names a delay (`grpc-retry-pushback-ms`,
// or ErrorDetail.retry_delay). A negative pushback, or a detail without a delay, is final. The
// delay is at least the one asked for; without one it grows exponentially. Jitter spreads clients
// that failed together. No attempt starts at or past the deadline, and every repetition takes a
// token from a budget shared by the client's calls, so that an ailing server is not drowned in
// repetitions.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <random>

#include "absl/status/status.h"
#include "client/time_source.h"

namespace attnd::client {

struct RetryOptions {
  int max_attempts = 20;  // the first one included; 1: never repeat
  Duration initial_backoff = std::chrono::milliseconds(50);
  Duration max_backoff = std::chrono::seconds(1);
  double backoff_multiplier = 1.6;
  double jitter = 0.2;              // a delay is multiplied by a factor from [1, 1 + jitter)
  double budget_tokens = 100;       // most repetitions at once
  double tokens_per_success = 0.1;  // earned back by each call that succeeds,
  double tokens_per_second = 10;    // and by time
};

// One failed attempt.
struct FailedAttempt {
  absl::Status status;
  std::optional<std::int64_t> pushback_ms;  // as sent by the server; negative: never
  int number = 1;                           // 1: the first attempt
};

// Pure: the delay before the next attempt, or nothing where `attempt` is final. `unit` is a random
// number from [0, 1). Neither deadline nor budget is looked at.
std::optional<Duration> RetryDelay(const RetryOptions& options, const FailedAttempt& attempt,
                                   double unit);

// Options, budget and randomness of one client. Thread-safe.
class RetryPolicy {
 public:
  RetryPolicy(const RetryOptions& options, std::uint64_t random_seed);

  // When to try again, or nothing: final, past the deadline, or the budget is used up. Takes a
  // token.
  std::optional<TimePoint> NextAttempt(const FailedAttempt& attempt, TimePoint now,
                                       TimePoint deadline);
  void OnSuccess();

  const RetryOptions& options() const { return options_; }

 private:
  const RetryOptions options_;
  std::mutex mutex_;
  std::mt19937_64 random_;            // guarded by mutex_
  double tokens_;                     // guarded by mutex_
  std::optional<TimePoint> updated_;  // guarded by mutex_
};

}  // namespace attnd::client
