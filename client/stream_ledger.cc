#include "client/stream_ledger.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/call_error.h"

namespace attnd::client {
namespace {

absl::Status DeadlinePassed(const absl::Status& last_failure) {
  if (last_failure.ok()) {
    return absl::DeadlineExceededError("no reply before the deadline");
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "no reply before the deadline; the last attempt ended with: ", ErrorText(last_failure)));
}

std::optional<Duration> TimeoutOf(const v1::ExecutionOptions& execution) {
  if (!execution.has_timeout()) return std::nullopt;
  return std::chrono::seconds(execution.timeout().seconds()) +
         std::chrono::nanoseconds(execution.timeout().nanos());
}

void SetTimeout(v1::ExecutionOptions& execution, Duration timeout) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  execution.mutable_timeout()->set_seconds(seconds.count());
  execution.mutable_timeout()->set_nanos(static_cast<std::int32_t>((timeout - seconds).count()));
}

}  // namespace

TimePoint StreamLedger::TimerOf(const Entry& entry) {
  return entry.waits_to_retry ? std::min(entry.retry_at, entry.deadline) : entry.deadline;
}

void StreamLedger::Add(DecodeRequest request, TimePoint deadline, Callback done) {
  const std::uint64_t id = ++last_id_;
  Entry& entry = entries_[id];
  entry.own_timeout = TimeoutOf(request.execution);
  entry.request = std::move(request);
  entry.deadline = deadline;
  entry.done = std::move(done);
  unsent_.insert(id);
  timers_.emplace(TimerOf(entry), id);
}

std::optional<StreamLedger::Outgoing> StreamLedger::TakeNext(TimePoint now) {
  if (unsent_.empty()) return std::nullopt;
  const std::uint64_t id = *unsent_.begin();
  unsent_.erase(unsent_.begin());
  Entry& entry = entries_.at(id);
  entry.sent = true;
  ++entry.attempts;
  if (entry.deadline != TimeSource::kNever) {
    // The stream has no deadline that the server could see: each request carries its own.
    const Duration left = std::max<Duration>(entry.deadline - now, std::chrono::microseconds(1));
    SetTimeout(entry.request.execution,
               entry.own_timeout.has_value() ? std::min(*entry.own_timeout, left) : left);
  }
  return Outgoing{id, &entry.request};
}

void StreamLedger::Answered(Entries::iterator entry, absl::StatusOr<DecodeResult> result,
                            Answers& answers) {
  timers_.erase({TimerOf(entry->second), entry->first});
  unsent_.erase(entry->first);
  answers.push_back({std::move(entry->second.done), std::move(result)});
  entries_.erase(entry);
}

void StreamLedger::OnReply(DecodeReply reply, TimePoint now, RetryPolicy& retry, Answers& answers) {
  const auto found = entries_.find(reply.request_id);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  const absl::Status status =
      reply.status.has_value() ? StatusFromProto(*reply.status) : absl::OkStatus();
  if (status.ok()) {
    retry.OnSuccess();
    Answered(found, std::move(reply.result), answers);
    return;
  }
  const std::optional<TimePoint> next =
      retry.NextAttempt({status, std::nullopt, entry.attempts}, now, entry.deadline);
  if (!next.has_value()) {
    Answered(found, status, answers);
    return;
  }
  timers_.erase({TimerOf(entry), found->first});
  entry.last_failure = status;
  entry.sent = false;
  entry.waits_to_retry = true;
  entry.retry_at = *next;
  timers_.emplace(TimerOf(entry), found->first);
}

void StreamLedger::OnBroken(const absl::Status& status) {
  for (auto& [id, entry] : entries_) {
    if (!entry.sent) continue;
    entry.sent = false;
    entry.last_failure = status;
    unsent_.insert(id);
  }
}

void StreamLedger::Fail(std::uint64_t id, const absl::Status& status, Answers& answers) {
  const auto found = entries_.find(id);
  if (found != entries_.end()) Answered(found, status, answers);
}

void StreamLedger::FailAll(const absl::Status& status, Answers& answers) {
  while (!entries_.empty()) Answered(entries_.begin(), status, answers);
}

void StreamLedger::RunTimers(TimePoint now, Answers& answers) {
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const auto found = entries_.find(timers_.begin()->second);
    Entry& entry = found->second;
    if (entry.deadline <= now) {
      Answered(found, DeadlinePassed(entry.last_failure), answers);
      continue;
    }
    timers_.erase(timers_.begin());
    entry.waits_to_retry = false;
    unsent_.insert(found->first);
    timers_.emplace(TimerOf(entry), found->first);
  }
}

TimePoint StreamLedger::NextTimer() const {
  return timers_.empty() ? TimeSource::kNever : timers_.begin()->first;
}

}  // namespace attnd::client
