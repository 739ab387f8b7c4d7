// The scheduler's state and its steps, one .cc a job: scheduler.cc (public calls, lifecycle,
// timer), request_admission.cc, batch_launch.cc, completion.cc, sequence_operations.cc.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/arrival_places.h"
#include "server/attention_backend.h"
#include "server/batch_policy.h"
#include "server/host_cache.h"
#include "server/metrics.h"
#include "server/mutex.h"
#include "server/outbox.h"
#include "server/page_pool.h"
#include "server/ready_queue.h"
#include "server/scheduler.h"
#include "server/sequence_store.h"
#include "server/server_config.h"
#include "server/work_item.h"

namespace attnd {

// What the scheduler remembers of a batch that the backend has.
struct RunningBatch {
  struct Part {
    WorkItem* item = nullptr;
    std::int32_t tokens = 0;
  };
  std::uint32_t shape_class = 0;
  QueueClass queue_class = QueueClass::kDecode;
  Clock::TimePoint submitted{};
  double work = 0;
  std::int64_t tokens = 0, requests = 0;
  std::vector<Part> parts;
};

struct Scheduler::Impl {
  Impl(const ServerConfig& config, std::string start_key, const Clock& clock,
       AttentionBackend& backend, Metrics& metrics);
  ~Impl();

  // --- scheduler.cc
  Ticket Submit(AttentionRequest request);
  absl::Status TakePlace(ArrivalPlace& place);
  void Cancel(Ticket ticket);
  void RunDueWork();
  void Drain(Clock::Duration timeout);
  Snapshot GetSnapshot() const;
  // Why new work is refused; OK: it is not. `creates`: sequences or forks.
  absl::Status RefusalOfNewWork(bool creates) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void ExpireDue(Clock::TimePoint now, Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void WatchDeadline(const PendingRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  Clock::TimePoint NextWake() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void NoticeEarlierWake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void TimerLoop();

  // --- request_admission.cc
  absl::Status QueueFull() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::Status CheckBounds(const AttentionRequest& request, Clock::TimePoint now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Admit(PendingRequest& request, Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::Status AdmitAttend(PendingRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::Status AdmitDecode(PendingRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::Status FindSequences(PendingRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::Status AdmitStep(WorkItem& item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Brings the layer's pages back from host memory.
  absl::Status BringBackPages(WorkItem& item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::Status SetAsidePages(WorkItem& item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::Status CacheFull(const char* field, std::int64_t pages, int page_class)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::Status JoinGroup(WorkItem& item, const ShapeClass& shape)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Whether a launch can hold the item: tokens and working memory.
  absl::Status CheckLaunch(const WorkItem& item, std::uint32_t shape_class)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  Clock::Duration RetryDelay() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // --- batch_launch.cc
  // kSubmitter: the calling thread brings new work and may run a small batch of it itself, from the
  // outbox. A completion never does: one would run inside the other, as long as work comes in.
  enum class RunOn : std::uint8_t { kBackend, kSubmitter };
  void Pump(Clock::TimePoint now, Outbox& outbox, RunOn run_on = RunOn::kBackend)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Launch(const BatchDecision& decision, Clock::TimePoint now, RunOn run_on, Outbox& outbox)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void HandOver(std::unique_ptr<Batch> batch, std::unique_ptr<RunningBatch> running, RunOn run_on,
                Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Empty ones that keep the memory of earlier batches.
  std::unique_ptr<Batch> TakeBatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  std::unique_ptr<RunningBatch> TakeRunning() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void LaunchItem(WorkItem& item, std::int32_t tokens, Batch& batch, RunningBatch& running)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void PackStepItem(WorkItem& item, const ItemRows& rows, Batch& batch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void MarkFirstLaunch(PendingRequest& request, QueueClass queue_class, Clock::TimePoint now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // The layer's first waiting step becomes ready if nothing holds it back.
  void WakeLayer(Sequence& sequence, std::int32_t layer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // --- completion.cc
  void OnBatchDone(std::unique_ptr<RunningBatch> running, std::unique_ptr<Batch> batch,
                   const BatchResult& result);
  void EndPart(const RunningBatch::Part& part, const absl::Status& status, Clock::TimePoint now,
               Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void ReportLaunch(PendingRequest& request, const RunningBatch& running, const Batch& batch,
                    const BatchResult& result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Ends what of the request is not in flight; an item in flight with more chunks to go ends with
  // its chunk.
  void FailWaiting(PendingRequest& request, const absl::Status& status, Clock::TimePoint now,
                   Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void FailAllWaiting(const absl::Status& status, Clock::TimePoint now, Outbox& outbox)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void AbortItem(WorkItem& item, const absl::Status& status, Clock::TimePoint now, Outbox& outbox)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void DetachItem(WorkItem& item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void ReplayLayer(Sequence& sequence, std::int32_t layer, Clock::TimePoint now, Outbox& outbox)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void FinishItem(WorkItem& item, absl::Status status, Clock::TimePoint now, Outbox& outbox)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void FinishRequest(PendingRequest& request, Clock::TimePoint now, Outbox& outbox)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // --- sequence_operations.cc
  absl::StatusOr<SequenceGrant> CreateSequence(const CreateSequenceSpec& spec);
  void ForkSequence(ForkSequenceSpec spec, ForkDone done);
  void TruncateSequences(const std::string& tenant, std::vector<std::string> sequence_ids,
                         std::int64_t num_tokens, std::uint64_t epoch,
                         absl::AnyInvocable<void(std::vector<SequenceFailureValue>)> done);
  void DeleteSequences(const std::string& tenant, std::vector<std::string> sequence_ids,
                       absl::AnyInvocable<void(std::vector<SequenceFailureValue>)> done);
  std::vector<SequenceFailureValue> RenewSequences(const std::string& tenant,
                                                   absl::Span<const std::string> sequence_ids,
                                                   std::optional<Clock::Duration> lease);
  SequenceGrant GrantOf(const Sequence& sequence) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::Status Rejected(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::Status AdmitTruncate(Sequence& sequence, const TruncateOperation& operation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Runs the barriers that no unfinished step precedes; wakes the steps behind them.
  void RunBarriers(Sequence& sequence, Clock::TimePoint now, Outbox& outbox)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void RunTruncate(Sequence& sequence, TruncateOperation& operation, Outbox& outbox)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::StatusOr<Sequence*> BringBackAndFork(Sequence& parent, const ForkSequenceSpec& spec,
                                             Clock::TimePoint now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void RunFork(Sequence& sequence, ForkOperation& operation, Clock::TimePoint now, Outbox& outbox)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void AnswerFork(ForkOperation& operation, const absl::StatusOr<SequenceGrant>& grant,
                  Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void EndSequence(Sequence& sequence, SequenceEnd reason, Clock::TimePoint now, Outbox& outbox)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Frees an ended sequence under which nothing runs any more.
  void FreeIfDone(Sequence& sequence, Outbox& outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  static void CountDown(const std::shared_ptr<SequencesCall>& call, Outbox& outbox);

  const ServerConfig& config;
  const Clock& clock;
  AttentionBackend& backend;
  Metrics& metrics;
  const BatchPolicyConfig policy;
  const std::int64_t max_tokens_effective;

  mutable Mutex mutex;
  ConditionVariable idle_changed;  // a request or batch ended
  PagePool pool ABSL_GUARDED_BY(mutex);
  HostCache host_cache ABSL_GUARDED_BY(mutex);
  SequenceStore store ABSL_GUARDED_BY(mutex);
  ShapeClassTable classes ABSL_GUARDED_BY(mutex);
  TenantTable tenants ABSL_GUARDED_BY(mutex);
  ReadyQueue queue ABSL_GUARDED_BY(mutex);
  absl::flat_hash_map<Ticket, std::unique_ptr<PendingRequest>> requests ABSL_GUARDED_BY(mutex);
  Ticket last_ticket ABSL_GUARDED_BY(mutex) = 0;

  bool retiring ABSL_GUARDED_BY(mutex) = false;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  bool device_fault ABSL_GUARDED_BY(mutex) = false;

  int batches_in_flight ABSL_GUARDED_BY(mutex) = 0;
  int prefill_in_flight ABSL_GUARDED_BY(mutex) = 0;
  std::uint64_t batch_number ABSL_GUARDED_BY(mutex) = 0;
  DeviceTurns turns ABSL_GUARDED_BY(mutex);
  std::vector<std::unique_ptr<Batch>> spare_batches ABSL_GUARDED_BY(mutex);
  std::vector<std::unique_ptr<RunningBatch>> spare_running ABSL_GUARDED_BY(mutex);

  ArrivalPlaces arrivals;
  std::atomic<std::int64_t> queue_requests{0};  // changed under the mutex, read by anybody
  std::int64_t queue_bytes ABSL_GUARDED_BY(mutex) = 0;
  std::int64_t running_requests ABSL_GUARDED_BY(mutex) = 0;
  std::int64_t sequences_active ABSL_GUARDED_BY(mutex) = 0;
  Clock::TimePoint last_submit ABSL_GUARDED_BY(mutex){}, last_completion ABSL_GUARDED_BY(mutex){};
  // How fast the queue drains: running average of the time between two answers while it is full.
  Clock::Duration answer_interval ABSL_GUARDED_BY(mutex){0};
  Clock::TimePoint last_answer ABSL_GUARDED_BY(mutex){};

  // Requests that wait and have a deadline; entries of answered ones stay until they come up.
  struct DeadlineEntry {
    Clock::TimePoint deadline;
    Ticket ticket = 0;
  };
  static bool LaterDeadline(const DeadlineEntry& a, const DeadlineEntry& b) {
    return a.deadline > b.deadline;
  }
  std::vector<DeadlineEntry> deadlines ABSL_GUARDED_BY(mutex);
  Clock::TimePoint batch_wake ABSL_GUARDED_BY(mutex) = Clock::kNever;  // max_queue_delay
  Clock::TimePoint timer_wake ABSL_GUARDED_BY(mutex) = Clock::kNever;  // what the timer waits for
  ConditionVariable timer_changed;
  bool timer_stop ABSL_GUARDED_BY(mutex) = false;
  const bool has_timer;  // a clock that does not run by itself has none
  std::thread timer;
};

}  // namespace attnd
