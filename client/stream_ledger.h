// What a decode stream owes: every request from submission to its one answer. Pure bookkeeping with
// time passed in: no thread, no lock, no gRPC.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "client/attention_types.h"
#include "client/retry_policy.h"
#include "client/time_source.h"
#include "client/wire_decoder.h"

namespace attnd::client {

class StreamLedger {
 public:
  using Callback = absl::AnyInvocable<void(absl::StatusOr<DecodeResult>)>;

  // A request whose answer is known; the owner calls `done` without its lock.
  struct Answer {
    Callback done;
    absl::StatusOr<DecodeResult> result;
  };
  using Answers = std::vector<Answer>;

  struct Outgoing {
    std::uint64_t id = 0;
    const DecodeRequest* request = nullptr;  // until the next call of a member
  };

  void Add(DecodeRequest request, TimePoint deadline, Callback done);

  // The oldest request that waits to be written, now marked as sent; its execution.timeout is what
  // is left until its deadline.
  std::optional<Outgoing> TakeNext(TimePoint now);
  bool has_unsent() const { return !unsent_.empty(); }

  // A reply to one request: an answer, or (where the status allows it) another attempt later.
  // Replies to requests that have been answered already (expired ones) are ignored.
  void OnReply(DecodeReply reply, TimePoint now, RetryPolicy& retry, Answers& answers);

  // The stream broke: what was sent and not answered is sent again, in the order of submission.
  void OnBroken(const absl::Status& status);

  // One request cannot be sent at all.
  void Fail(std::uint64_t id, const absl::Status& status, Answers& answers);
  void FailAll(const absl::Status& status, Answers& answers);

  // Answers what is past its deadline and releases retries that are due. NextTimer is the earliest
  // time at which this has something to do.
  void RunTimers(TimePoint now, Answers& answers);
  TimePoint NextTimer() const;

  std::int64_t size() const { return static_cast<std::int64_t>(entries_.size()); }

 private:
  struct Entry {
    DecodeRequest request;
    TimePoint deadline;
    std::optional<Duration> own_timeout;  // execution.timeout as submitted
    Callback done;
    int attempts = 0;
    TimePoint retry_at{};  // while a retry waits
    bool waits_to_retry = false;
    bool sent = false;
    absl::Status last_failure;  // told when the deadline comes first
  };
  using Entries = std::map<std::uint64_t, Entry>;

  void Answered(Entries::iterator entry, absl::StatusOr<DecodeResult> result, Answers& answers);
  // A timer of an entry: its deadline or its retry, whichever is earlier.
  static TimePoint TimerOf(const Entry& entry);

  std::uint64_t last_id_ = 0;
  Entries entries_;  // by id: the order of submission
  std::set<std::uint64_t> unsent_;
  std::set<std::pair<TimePoint, std::uint64_t>> timers_;
};

}  // namespace attnd::client
