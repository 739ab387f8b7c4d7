// Life of sequences inside the scheduler: create, fork, truncate, renew, delete, expiry.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/error_status.h"
#include "server/scheduler_impl.h"
#include "server/sequence_pages.h"

namespace attnd {
namespace {

std::vector<SequenceFailureValue> Failures(SequencesCall& call) {
  std::vector<SequenceFailureValue> failures;
  for (auto& failure : call.failures) {
    if (failure) failures.push_back(std::move(*failure));
  }
  return failures;
}

absl::Status EndedStatus() {
  return ErrorStatus(absl::StatusCode::kAborted, v1::REASON_SEQUENCE_ENDED, "sequence_id",
                     "the sequence ended while this waited");
}

}  // namespace

SequenceGrant Scheduler::Impl::GrantOf(const Sequence& sequence) const {
  return {store.IdOf(sequence), sequence.shape->max_tokens, sequence.lease};
}

// Counts a refusal and tells when to try again, where that can help.
absl::Status Scheduler::Impl::Rejected(absl::Status status) {
  const v1::Reason reason = ErrorDetailOf(status).reason();
  if (reason == v1::REASON_QUOTA) {
    metrics.RecordRejected(RejectReason::kQuota);
  } else if (reason == v1::REASON_CACHE_FULL) {
    metrics.RecordRejected(RejectReason::kCacheFull);
  } else {
    return status;
  }
  return WithRetryDelay(status, RetryDelay());
}

absl::StatusOr<SequenceGrant> Scheduler::Impl::CreateSequence(const CreateSequenceSpec& spec) {
  MutexLock lock(mutex);
  const Clock::TimePoint now = clock.Now();
  if (!spec.creation_key.empty() && !device_fault) {
    const auto known = store.FindCreation(spec.tenant, spec.creation_key, spec.request_bytes);
    if (!known.ok()) return known.status();
    if (*known != nullptr && (*known)->sequence != nullptr) {
      store.RestartLease(*(*known)->sequence, now);
      return GrantOf(*(*known)->sequence);
    }
  }
  if (absl::Status refusal = RefusalOfNewWork(/*creates=*/true); !refusal.ok()) return refusal;
  const absl::StatusOr<Sequence*> created = store.Create(spec, now);
  if (!created.ok()) return Rejected(created.status());
  if (!spec.creation_key.empty()) {
    store.AddCreation(spec.tenant, spec.creation_key, spec.request_bytes).sequence = *created;
  }
  NoticeEarlierWake();
  return GrantOf(**created);
}

void Scheduler::Impl::ForkSequence(ForkSequenceSpec spec, ForkDone done) {
  Outbox outbox;
  MutexLock lock(mutex);
  const Clock::TimePoint now = clock.Now();
  ForkOperation operation{std::move(spec), std::move(done)};
  const ForkSequenceSpec& wanted = operation.spec;
  const auto refuse = [&](const absl::Status& status) {
    outbox.Call([done = std::move(operation.done), status]() mutable { done(status); });
  };
  if (!wanted.creation_key.empty() && !device_fault) {
    const auto known = store.FindCreation(wanted.tenant, wanted.creation_key, wanted.request_bytes);
    if (!known.ok()) return refuse(known.status());
    if (*known != nullptr && (*known)->sequence == nullptr) {
      (*known)->waiting.push_back(std::move(operation.done));
      return;
    }
    if (*known != nullptr) {
      store.RestartLease(*(*known)->sequence, now);
      outbox.Call([done = std::move(operation.done),
                   grant = GrantOf(*(*known)->sequence)]() mutable { done(std::move(grant)); });
      return;
    }
  }
  if (absl::Status refusal = RefusalOfNewWork(/*creates=*/true); !refusal.ok()) {
    return refuse(refusal);
  }
  const absl::StatusOr<Sequence*> parent = store.Find(wanted.tenant, wanted.sequence_id);
  if (!parent.ok()) return refuse(parent.status());
  if (absl::Status check = store.CheckFork(**parent, wanted, /*projected=*/true); !check.ok()) {
    return refuse(check);
  }
  if (!wanted.creation_key.empty()) {
    store.AddCreation(wanted.tenant, wanted.creation_key, wanted.request_bytes);
  }
  Sequence& sequence = **parent;
  sequence.barriers.emplace_back().fork = std::move(operation);
  ++sequence.barriers_admitted;
  RunBarriers(sequence, now, outbox);
  NoticeEarlierWake();
}

void Scheduler::Impl::AnswerFork(ForkOperation& operation,
                                 const absl::StatusOr<SequenceGrant>& grant, Outbox& outbox) {
  outbox.Call([done = std::move(operation.done), grant]() mutable { done(grant); });
}

// A page in host memory cannot be shared.
absl::StatusOr<Sequence*> Scheduler::Impl::BringBackAndFork(Sequence& parent,
                                                            const ForkSequenceSpec& spec,
                                                            Clock::TimePoint now) {
  for (LayerState& layer : parent.layers) {
    if (host_cache.BringBack(parent, layer, /*ticket=*/0)) continue;
    return ErrorStatus(absl::StatusCode::kResourceExhausted, v1::REASON_CACHE_FULL, "sequence_id",
                       absl::StrCat("needs ", layer.host_pages.size(), " free pages, has ",
                                    pool.Available(parent.shape->page_class)));
  }
  absl::StatusOr<Sequence*> child = store.Fork(parent, spec, now);
  if (child.ok()) host_cache.NoteIdle(**child);
  return child;
}

void Scheduler::Impl::RunFork(Sequence& sequence, ForkOperation& operation, Clock::TimePoint now,
                              Outbox& outbox) {
  const ForkSequenceSpec& spec = operation.spec;
  absl::StatusOr<Sequence*> child = BringBackAndFork(sequence, spec, now);
  absl::StatusOr<SequenceGrant> grant = absl::UnknownError("");
  if (child.ok()) {
    grant = GrantOf(**child);
  } else if (child.status().code() == absl::StatusCode::kOutOfRange) {
    // It was in range when it was admitted: a step that it builds on did not run.
    grant = ErrorStatus(absl::StatusCode::kAborted, v1::REASON_PREDECESSOR, "num_tokens",
                        "a step admitted before this fork did not run");
  } else {
    grant = Rejected(child.status());
  }
  if (!spec.creation_key.empty()) {
    auto creation = store.TakeCreation(spec.tenant, spec.creation_key);
    for (ForkDone& done : creation->waiting) {
      outbox.Call([done = std::move(done), grant]() mutable { done(std::move(grant)); });
    }
    if (child.ok()) {
      store.AddCreation(spec.tenant, spec.creation_key, spec.request_bytes).sequence = *child;
    }
  }
  AnswerFork(operation, grant, outbox);
}

void Scheduler::Impl::CountDown(const std::shared_ptr<SequencesCall>& call, Outbox& outbox) {
  if (--call->remaining > 0) return;
  outbox.Call([call]() { call->done(Failures(*call)); });
}

void Scheduler::Impl::TruncateSequences(
    const std::string& tenant, std::vector<std::string> sequence_ids, std::int64_t num_tokens,
    std::uint64_t epoch, absl::AnyInvocable<void(std::vector<SequenceFailureValue>)> done) {
  Outbox outbox;
  MutexLock lock(mutex);
  const Clock::TimePoint now = clock.Now();
  auto call = std::make_shared<SequencesCall>();
  call->done = std::move(done);
  call->remaining = sequence_ids.size() + 1;  // the last one is this function's own
  call->failures.resize(sequence_ids.size());
  const absl::Status refusal = RefusalOfNewWork(/*creates=*/false);
  for (std::size_t i = 0; i < sequence_ids.size(); ++i) {
    absl::Status status = refusal;
    Sequence* sequence = nullptr;
    TruncateOperation operation{num_tokens, epoch, call, i};
    if (status.ok()) {
      const absl::StatusOr<Sequence*> found = store.Find(tenant, sequence_ids[i]);
      status = found.status();
      if (found.ok()) {
        sequence = *found;
        status = AdmitTruncate(*sequence, operation);
      }
    }
    if (!status.ok()) {
      call->failures[i] = SequenceFailureValue{std::move(sequence_ids[i]), std::move(status)};
      CountDown(call, outbox);
      continue;
    }
    sequence->barriers.emplace_back().truncate = std::move(operation);
    ++sequence->barriers_admitted;
    RunBarriers(*sequence, now, outbox);
  }
  CountDown(call, outbox);
}

absl::Status Scheduler::Impl::AdmitTruncate(Sequence& sequence,
                                            const TruncateOperation& operation) {
  const auto& last = sequence.last_truncate;
  if (last && last->epoch == operation.epoch && last->num_tokens == operation.num_tokens) {
    return absl::OkStatus();  // a repeat: RunTruncate finds every layer done
  }
  for (std::size_t i = 0; i < sequence.layers.size(); ++i) {
    const LayerProgress& progress = sequence.layers[i].projected;
    if (operation.epoch <= progress.epoch) {
      return LayerStatus(absl::StatusCode::kFailedPrecondition, v1::REASON_STALE_EPOCH, "epoch",
                         progress,
                         absl::StrCat("epoch ", operation.epoch, " is not larger than layer ", i,
                                      "'s ", progress.epoch));
    }
    if (!CanContinueFrom(store.Rules(sequence, static_cast<std::int32_t>(i)), progress,
                         operation.num_tokens)) {
      return LayerStatus(absl::StatusCode::kFailedPrecondition, v1::REASON_WINDOW_PASSED,
                         "num_tokens", progress,
                         absl::StrCat("layer ", i, " cannot go on from ", operation.num_tokens,
                                      " tokens: its window has freed the keys it would need"));
    }
  }
  for (LayerState& layer : sequence.layers) {
    layer.projected = AfterTruncate(layer.projected, operation.num_tokens, operation.epoch);
  }
  sequence.last_truncate = {operation.epoch, operation.num_tokens};
  return absl::OkStatus();
}

void Scheduler::Impl::RunTruncate(Sequence& sequence, TruncateOperation& operation,
                                  Outbox& outbox) {
  std::vector<std::uint32_t> released;
  for (LayerState& layer : sequence.layers) {
    if (operation.epoch <= layer.applied.epoch) continue;
    layer.applied = AfterTruncate(layer.applied, operation.num_tokens, operation.epoch);
    CutPages(layer, sequence, layer.applied.length, released);
    host_cache.Cut(sequence, layer, layer.applied.length);
    GiveBack(sequence, layer, pool, released);
  }
  CountDown(operation.call, outbox);
}

void Scheduler::Impl::RunBarriers(Sequence& sequence, Clock::TimePoint now, Outbox& outbox) {
  bool ran = false;
  while (sequence.steps_front == 0 && !sequence.barriers.empty()) {
    Barrier barrier = std::move(sequence.barriers.front());
    sequence.barriers.erase(sequence.barriers.begin());
    ++sequence.barriers_done;
    sequence.steps_front = barrier.steps_after;
    if (barrier.truncate) RunTruncate(sequence, *barrier.truncate, outbox);
    if (barrier.fork) RunFork(sequence, *barrier.fork, now, outbox);
    ran = true;
  }
  if (!ran) return;
  for (std::size_t i = 0; i < sequence.layers.size(); ++i) {
    WakeLayer(sequence, static_cast<std::int32_t>(i));
  }
}

void Scheduler::Impl::DeleteSequences(
    const std::string& tenant, std::vector<std::string> sequence_ids,
    absl::AnyInvocable<void(std::vector<SequenceFailureValue>)> done) {
  Outbox outbox;
  MutexLock lock(mutex);
  const Clock::TimePoint now = clock.Now();
  auto call = std::make_shared<SequencesCall>();
  call->done = std::move(done);
  call->remaining = sequence_ids.size() + 1;
  call->failures.resize(sequence_ids.size());
  for (std::size_t i = 0; i < sequence_ids.size(); ++i) {
    const absl::StatusOr<Sequence*> found = store.Find(tenant, sequence_ids[i]);
    if (!found.ok()) {
      call->failures[i] = SequenceFailureValue{std::move(sequence_ids[i]), found.status()};
      CountDown(call, outbox);
      continue;
    }
    (*found)->end_waiters.emplace_back(call, i);
    EndSequence(**found, SequenceEnd::kDeleted, now, outbox);
  }
  CountDown(call, outbox);
  Pump(now, outbox);
  idle_changed.notify_all();
}

void Scheduler::Impl::EndSequence(Sequence& sequence, SequenceEnd reason, Clock::TimePoint now,
                                  Outbox& outbox) {
  store.End(sequence, reason);
  host_cache.NoteBusy(sequence);
  metrics.RecordSequenceEnd(reason);
  const absl::Status ended = EndedStatus();
  for (LayerState& layer : sequence.layers) {
    for (WorkItem* item = layer.first_waiting; item != nullptr;) {
      WorkItem* next = item->next_in_layer;
      if (item->state == WorkItem::State::kInFlight) {
        if (item->failure.ok()) item->failure = ended;  // a chunk runs; it ends with that
      } else {
        DetachItem(*item);
        FinishItem(*item, ended, now, outbox);
      }
      item = next;
    }
  }
  for (Barrier& barrier : sequence.barriers) {
    if (barrier.truncate) {
      const TruncateOperation& operation = *barrier.truncate;
      operation.call->failures[operation.index] = SequenceFailureValue{store.IdOf(sequence), ended};
      CountDown(operation.call, outbox);
    }
    if (barrier.fork) {
      const ForkSequenceSpec& spec = barrier.fork->spec;
      if (!spec.creation_key.empty()) {
        auto creation = store.TakeCreation(spec.tenant, spec.creation_key);
        for (ForkDone& waiting : creation->waiting) {
          outbox.Call([waiting = std::move(waiting), ended]() mutable { waiting(ended); });
        }
      }
      AnswerFork(*barrier.fork, ended, outbox);
    }
  }
  sequence.barriers.clear();
  FreeIfDone(sequence, outbox);
}

void Scheduler::Impl::FreeIfDone(Sequence& sequence, Outbox& outbox) {
  if (!sequence.ended || sequence.steps_running > 0) return;
  for (const auto& [call, index] : sequence.end_waiters) CountDown(call, outbox);
  host_cache.Release(sequence);
  store.Free(sequence);
}

std::vector<SequenceFailureValue> Scheduler::Impl::RenewSequences(
    const std::string& tenant, absl::Span<const std::string> sequence_ids,
    std::optional<Clock::Duration> lease) {
  std::vector<SequenceFailureValue> failures;
  MutexLock lock(mutex);
  const Clock::TimePoint now = clock.Now();
  const absl::Status refusal = RefusalOfNewWork(/*creates=*/false);
  for (const std::string& id : sequence_ids) {
    if (!refusal.ok()) {
      failures.push_back({id, refusal});
      continue;
    }
    const absl::StatusOr<Sequence*> found = store.Find(tenant, id);
    if (found.ok()) {
      store.SetLease(**found, lease, now);
    } else {
      failures.push_back({id, found.status()});
    }
  }
  NoticeEarlierWake();
  return failures;
}

}  // namespace attnd
