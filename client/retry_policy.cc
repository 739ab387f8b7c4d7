#include "client/retry_policy.h"

#include <algorithm>
#include <cmath>

#include "client/call_error.h"

namespace attnd::client {
namespace {

// Longer requests are cut to a day: past every deadline, and far from overflowing a Duration.
constexpr std::int64_t kLongestDelaySeconds = 86'400;

// The delay that the server asked for; nothing: it did not ask. `final` is set where it forbids.
std::optional<Duration> RequestedDelay(const FailedAttempt& attempt, bool& final) {
  std::optional<Duration> delay;
  if (const auto detail = DetailOf(attempt.status)) {
    if (detail->has_retry_delay()) {
      const std::int64_t seconds =
          std::clamp<std::int64_t>(detail->retry_delay().seconds(), 0, kLongestDelaySeconds);
      delay = std::chrono::seconds(seconds) +
              std::chrono::nanoseconds(std::max(0, detail->retry_delay().nanos()));
    } else {
      final = true;
    }
  }
  if (attempt.pushback_ms.has_value()) {
    if (*attempt.pushback_ms < 0) {
      final = true;
      return delay;
    }
    const Duration pushback =
        std::chrono::milliseconds(std::min(*attempt.pushback_ms, kLongestDelaySeconds * 1000));
    delay = std::max(delay.value_or(pushback), pushback);
    // The header alone says that the call may be repeated, whatever the detail leaves out.
    final = false;
  }
  return delay;
}

}  // namespace

std::optional<Duration> RetryDelay(const RetryOptions& options, const FailedAttempt& attempt,
                                   double unit) {
  if (attempt.number >= options.max_attempts) return std::nullopt;
  const absl::StatusCode code = attempt.status.code();
  if (code != absl::StatusCode::kUnavailable && code != absl::StatusCode::kResourceExhausted &&
      code != absl::StatusCode::kAborted) {
    return std::nullopt;
  }
  bool final = false;
  std::optional<Duration> delay = RequestedDelay(attempt, final);
  if (final) return std::nullopt;
  if (!delay.has_value()) {
    if (code != absl::StatusCode::kUnavailable) return std::nullopt;
    const double factor = std::pow(options.backoff_multiplier, attempt.number - 1);
    const double backoff = static_cast<double>(options.initial_backoff.count()) * factor;
    delay = Duration(static_cast<std::int64_t>(
        std::min(backoff, static_cast<double>(options.max_backoff.count()))));
  }
  const double jittered = static_cast<double>(delay->count()) * (1 + options.jitter * unit);
  return Duration(static_cast<std::int64_t>(jittered));
}

RetryPolicy::RetryPolicy(const RetryOptions& options, std::uint64_t random_seed)
    : options_(options), random_(random_seed), tokens_(options.budget_tokens) {}

std::optional<TimePoint> RetryPolicy::NextAttempt(const FailedAttempt& attempt, TimePoint now,
                                                  TimePoint deadline) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const double unit = std::uniform_real_distribution<double>(0, 1)(random_);
  const std::optional<Duration> delay = RetryDelay(options_, attempt, unit);
  if (!delay.has_value() || *delay >= deadline - now) return std::nullopt;
  if (updated_.has_value()) {
    const double seconds = std::chrono::duration<double>(now - *updated_).count();
    tokens_ = std::min(options_.budget_tokens,
                       tokens_ + std::max(0.0, seconds) * options_.tokens_per_second);
  }
  updated_ = now;
  if (tokens_ < 1) return std::nullopt;
  tokens_ -= 1;
  return now + *delay;
}

void RetryPolicy::OnSuccess() {
  const std::lock_guard<std::mutex> lock(mutex_);
  tokens_ = std::min(options_.budget_tokens, tokens_ + options_.tokens_per_success);
}

}  // namespace attnd::client
