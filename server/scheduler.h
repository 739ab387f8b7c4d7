// Admission, queueing, batching and completion: everything between a validated request and a
// backend launch.
//
// One mutex guards the queue, the sequences and the page pool; whoever changes their state (a
// submit, a cancel, a completion, the timer thread) also forms and hands over the next batches, so
// an idle server answers without a thread hop before the backend. Policy is batch_policy.h,
// sequence state is sequence_store.h; both are plain single-threaded classes.
//
// Thread-safe. Callbacks run on any thread, never under the mutex, each exactly once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/attention_request.h"
#include "server/clock.h"
#include "server/sequence_types.h"

namespace attnd {

class ArrivalPlace;
class AttentionBackend;
class Metrics;
struct ServerConfig;

// Names a submitted request for Cancel; 0 is never used.
using Ticket = std::uint64_t;

class Scheduler {
 public:
  // `start_key`: 4 random bytes drawn at each start. All references outlive the scheduler; the
  // destructor waits for the batches that the backend still runs.
  Scheduler(const ServerConfig& config, std::string start_key, const Clock& clock,
            AttentionBackend& backend, Metrics& metrics);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Admits the request (deadline, queue bounds, positions, epochs, pages) or answers it at once.
  Ticket Submit(AttentionRequest request);
  // Takes a place of the queue for a request that has yet to be received, or says that there is
  // none (the status that Submit would answer, counted as rejected).
  absl::Status TakePlace(ArrivalPlace& place);
  // Before the request is submitted, and where it never will be. Without a place: nothing happens.
  void LeavePlace(ArrivalPlace& place);
  // Queued work is dropped now and answered CANCELLED; running work finishes and is answered.
  // Unknown tickets are ignored.
  void Cancel(Ticket ticket);

  absl::StatusOr<SequenceGrant> CreateSequence(const CreateSequenceSpec& spec);
  // Waits (without blocking the caller) for steps admitted before it.
  void ForkSequence(ForkSequenceSpec spec,
                    absl::AnyInvocable<void(absl::StatusOr<SequenceGrant>)> done);
  absl::StatusOr<SequenceInfo> GetSequence(const std::string& tenant,
                                           const std::string& sequence_id);
  absl::StatusOr<SequenceList> ListSequences(const std::string& tenant, std::int32_t page_size,
                                             const std::string& page_token);
  std::vector<SequenceFailureValue> RenewSequences(const std::string& tenant,
                                                   absl::Span<const std::string> sequence_ids,
                                                   std::optional<Clock::Duration> lease);
  void TruncateSequences(std::string tenant, std::vector<std::string> sequence_ids,
                         std::int64_t num_tokens, std::uint64_t epoch,
                         absl::AnyInvocable<void(std::vector<SequenceFailureValue>)> done);
  // Answers waiting steps ABORTED, waits for running ones.
  void DeleteSequences(std::string tenant, std::vector<std::string> sequence_ids,
                       absl::AnyInvocable<void(std::vector<SequenceFailureValue>)> done);

  // Lifecycle. Retire: no new sequences or forks, renewals only up to the retire limit. Stop: every
  // new request is answered UNAVAILABLE; admitted work finishes. Both are idempotent.
  void BeginRetire();
  void BeginStop();
  // True when nothing is queued or running.
  bool Idle() const;
  // True when no sequence is left.
  bool NoSequences() const;
  // Blocks until Idle or `timeout`; then answers what is still queued UNAVAILABLE. Called once,
  // after BeginStop.
  void Drain(Clock::Duration timeout);

  // Does what is due now: deadlines, leases, delayed batches. The timer thread calls it; with a
  // clock that does not run by itself there is no such thread and whoever moves the clock calls it.
  void RunDueWork();

  // queue_bytes: of all requests that are not answered yet; queue_requests: those that wait for a
  // launch. used_bytes: pages that hold tokens or are set aside for admitted steps; reserved_bytes:
  // pages guaranteed by reserve_tokens and not in use.
  struct Snapshot {
    std::int64_t queue_requests = 0, queue_bytes = 0, running_requests = 0, running_batches = 0;
    std::int64_t sequences_active = 0, sequences_idle = 0;  // active: a step waits or runs
    std::int64_t slabs_total = 0, slabs_free = 0;           // 2 MiB units of the pool
    std::int64_t pool_bytes = 0, used_bytes = 0, reserved_bytes = 0;
    std::int64_t pages_used = 0, pages_shared = 0;
    // Host memory for pages of idle sequences, and what has moved there and back.
    std::int64_t host_bytes = 0, host_used_bytes = 0, moved_out_bytes = 0, moved_in_bytes = 0;
    bool device_fault = false;
    Clock::TimePoint last_submit{},
        last_completion{};                  // to and from the backend; the watchdog compares them
    std::int64_t max_tokens_effective = 0;  // the advertised limit: what the pool can really hold
  };
  Snapshot GetSnapshot() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace attnd
