// How work ends: launches that are done, items that fail while they wait, answers.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/error_status.h"
#include "server/scheduler_impl.h"
#include "server/sequence_pages.h"

namespace attnd {
namespace {

// Share of the newest interval in the running average of the drain rate.
constexpr int kIntervalShare = 16;

// Runs without the lock: failed rows of a big answer take a while to clear.
void Deliver(PendingRequest& pending) {
  AttentionRequest& request = pending.request;
  AttentionResult& result = pending.result;
  if (result.status.ok()) {
    const bool attend = request.kind == RequestKind::kAttend;
    for (const WorkItem& item : pending.items) {
      if (item.failure.ok()) continue;
      if (attend) {
        result.status = item.failure;
        break;
      }
      result.failed_steps.push_back({item.index, AtStep(item.failure, item.index)});
    }
    if (!pending.items.empty() && result.failed_steps.size() == pending.items.size()) {
      result.status = result.failed_steps.front().status;
    }
  }
  if (result.status.ok()) {
    if (!pending.launched) pending.outputs = AllocateOutputs(request, pending.num_rows);
    for (const StepFailure& failed : result.failed_steps) {
      const WorkItem& item = pending.items[static_cast<std::size_t>(failed.step_index)];
      FillEmptyRows(pending.outputs, item.first_row, item.num_tokens);
    }
    result.o = std::move(pending.outputs.o);
    result.lse = std::move(pending.outputs.lse);
  } else {
    result.failed_steps.clear();
  }
  request.on_done(std::move(result));
}

absl::Status PredecessorStatus() {
  return ErrorStatus(absl::StatusCode::kAborted, v1::REASON_PREDECESSOR, "",
                     "a step admitted before this one did not run");
}

}  // namespace

Outbox::~Outbox() {
  for (auto& request : answered_) Deliver(*request);
  for (auto& call : calls_) call();
}

void Scheduler::Impl::OnBatchDone(std::unique_ptr<RunningBatch> running,
                                  std::unique_ptr<Batch> batch, const BatchResult& result) {
  Outbox outbox;
  MutexLock lock(mutex);
  const Clock::TimePoint now = clock.Now();
  --batches_in_flight;
  if (running->queue_class == QueueClass::kPrefill) {
    --prefill_in_flight;
    turns.prefill_ended = now;
    // Batches run one after the other: it had the device since the one before it ended.
    turns.prefill_time = now - std::max(running->submitted, last_completion);
  } else {
    turns.decode_ended = now;
  }
  last_completion = now;
  absl::Status status = absl::OkStatus();
  if (result.status.ok()) {
    classes.Measure(running->shape_class, running->work,
                    std::chrono::duration<double>(result.kernel_time).count());
  } else {
    status = ErrorStatus(absl::StatusCode::kInternal, v1::REASON_DEVICE_FAULT, "",
                         absl::StrCat("device fault: ", result.status.message()));
    if (!device_fault) metrics.RecordDeviceFault();
    device_fault = true;
  }
  ++batch_number;  // marks requests whose report has this launch
  for (const RunningBatch::Part& part : running->parts) {
    ReportLaunch(*part.item->request, *running, *batch, result);
    EndPart(part, status, now, outbox);
  }
  if (device_fault) {
    FailAllWaiting(ErrorStatus(absl::StatusCode::kUnavailable, v1::REASON_DEVICE_FAULT, "",
                               "the device has failed"),
                   now, outbox);
  }
  spare_batches.push_back(std::move(batch));
  spare_running.push_back(std::move(running));
  Pump(now, outbox);
  idle_changed.notify_all();
}

void Scheduler::Impl::ReportLaunch(PendingRequest& request, const RunningBatch& running,
                                   const Batch& batch, const BatchResult& result) {
  if (request.last_batch == batch_number) return;
  request.last_batch = batch_number;
  ExecutionReport& report = request.result.execution;
  for (const char* kernel : batch.report.kernels) {
    if (std::find(report.kernels.begin(), report.kernels.end(), kernel) == report.kernels.end()) {
      report.kernels.push_back(kernel);
    }
  }
  report.num_splits = std::max(report.num_splits, batch.report.num_splits);
  report.batch_requests = static_cast<std::int32_t>(running.requests);
  report.batch_tokens = static_cast<std::int32_t>(running.tokens);
  report.kernel_time += result.kernel_time;
}

void Scheduler::Impl::EndPart(const RunningBatch::Part& part, const absl::Status& status,
                              Clock::TimePoint now, Outbox& outbox) {
  WorkItem& item = *part.item;
  if (--item.request->items_in_flight == 0) --running_requests;
  Sequence* sequence = item.sequence;
  if (sequence != nullptr) {
    --sequence->steps_running;
    LayerState& layer = sequence->layer(item.layer);
    GiveBack(*sequence, layer, pool, item.released);
    if (item.launched_whole() && item.kind == StepKind::kAppend && status.ok()) {
      FreePassedPages(*sequence, layer, pool, store.Rules(*sequence, item.layer));
    }
  }
  if (item.launched_whole()) {
    FinishItem(item, status, now, outbox);
  } else if (!status.ok() || !item.failure.ok()) {
    // Stopped between chunks. It goes back to waiting first, so that it is taken out in one way.
    item.state = WorkItem::State::kWaiting;
    AbortItem(item, status.ok() ? item.failure : status, now, outbox);
  } else {
    queue.Add(item, classes);
  }
  if (sequence != nullptr) FreeIfDone(*sequence, outbox);
}

void Scheduler::Impl::FailWaiting(PendingRequest& request, const absl::Status& status,
                                  Clock::TimePoint now, Outbox& outbox) {
  for (WorkItem& item : request.items) {
    switch (item.state) {
      case WorkItem::State::kWaiting:
      case WorkItem::State::kHeldBack:
      case WorkItem::State::kReady:
        AbortItem(item, status, now, outbox);
        break;
      case WorkItem::State::kInFlight:
        if (!item.launched_whole() && item.failure.ok()) item.failure = status;
        break;
      case WorkItem::State::kFinished:
        break;
    }
  }
}

void Scheduler::Impl::FailAllWaiting(const absl::Status& status, Clock::TimePoint now,
                                     Outbox& outbox) {
  std::vector<PendingRequest*> waiting;
  for (const auto& [ticket, request] : requests) {
    if (request->items_waiting > 0) waiting.push_back(request.get());
  }
  // Finished requests live on in the outbox, so every pointer stays good.
  for (PendingRequest* request : waiting) FailWaiting(*request, status, now, outbox);
}

void Scheduler::Impl::AbortItem(WorkItem& item, const absl::Status& status, Clock::TimePoint now,
                                Outbox& outbox) {
  Sequence* sequence = item.sequence;
  const std::int32_t layer = item.layer;
  const bool changed_layer = sequence != nullptr && item.kind == StepKind::kAppend;
  DetachItem(item);
  FinishItem(item, status, now, outbox);
  if (sequence == nullptr || sequence->ended) return;
  if (changed_layer) ReplayLayer(*sequence, layer, now, outbox);
  WakeLayer(*sequence, layer);
}

// Takes a waiting or ready item out of the queue and its layer, with its pages.
void Scheduler::Impl::DetachItem(WorkItem& item) {
  if (item.state == WorkItem::State::kReady) {
    queue.Remove(item, classes);
  }
  item.state = WorkItem::State::kWaiting;
  if (--item.request->items_waiting == 0) --queue_requests;
  if (item.sequence == nullptr) return;
  LayerState& layer = item.sequence->layer(item.layer);
  WorkItem* before = nullptr;
  for (WorkItem* i = layer.first_waiting; i != &item; i = i->next_in_layer) before = i;
  (before != nullptr ? before->next_in_layer : layer.first_waiting) = item.next_in_layer;
  if (layer.last_waiting == &item) layer.last_waiting = before;
  item.next_in_layer = nullptr;
  if (item.launched_tokens > 0 && item.kind == StepKind::kAppend) {
    // Chunks that ran are taken back: the step appends all of its tokens or none.
    CutPages(layer, *item.sequence, item.claim.position, item.provision);
  }
  GiveBack(*item.sequence, layer, pool, item.provision);
}

// After a step of the layer did not run: judges the waiting ones again, in order. A step whose
// verdict changes built on the missing one.
void Scheduler::Impl::ReplayLayer(Sequence& sequence, std::int32_t layer_index,
                                  Clock::TimePoint now, Outbox& outbox) {
  LayerState& layer = sequence.layer(layer_index);
  const LayerRules rules = store.Rules(sequence, layer_index);
  LayerProgress progress = layer.applied;
  std::uint64_t era = sequence.barriers_done;
  const auto pass_barriers = [&](std::uint64_t up_to) {
    for (; era < up_to; ++era) {
      const Barrier& barrier = sequence.barriers[era - sequence.barriers_done];
      if (barrier.truncate && barrier.truncate->epoch > progress.epoch) {
        progress = AfterTruncate(progress, barrier.truncate->num_tokens, barrier.truncate->epoch);
      }
    }
  };
  absl::InlinedVector<WorkItem*, 8> orphans;
  for (WorkItem* item = layer.first_waiting; item != nullptr; item = item->next_in_layer) {
    pass_barriers(item->era);
    if (item->launched_tokens > 0) {  // its cut has been made; it goes on
      progress = AfterStep(rules, progress, item->claim, item->kind);
      continue;
    }
    const StepVerdict verdict = JudgeStep(rules, progress, item->claim);
    if (verdict.status.ok() && verdict.kind == item->kind) {
      progress = AfterStep(rules, progress, item->claim, item->kind);
    } else {
      orphans.push_back(item);
    }
  }
  pass_barriers(sequence.barriers_admitted);
  layer.projected = progress;
  for (WorkItem* item : orphans) {
    if (item->state == WorkItem::State::kFinished) continue;
    DetachItem(*item);
    FinishItem(*item, PredecessorStatus(), now, outbox);
  }
}

void Scheduler::Impl::FinishItem(WorkItem& item, absl::Status status, Clock::TimePoint now,
                                 Outbox& outbox) {
  item.state = WorkItem::State::kFinished;
  item.failure = std::move(status);
  PendingRequest& request = *item.request;
  if (Sequence* sequence = item.sequence; sequence != nullptr) {
    item.sequence = nullptr;
    if (--sequence->steps_unfinished == 0) {
      --sequences_active;
      if (!sequence->ended) host_cache.NoteIdle(*sequence);
    }
    if (!sequence->ended) {
      if (item.era == sequence->barriers_done) {
        --sequence->steps_front;
      } else {
        --sequence->barriers[item.era - sequence->barriers_done - 1].steps_after;
      }
      store.RestartLease(*sequence, now);
      RunBarriers(*sequence, now, outbox);
    }
  }
  if (--request.items_unfinished == 0) FinishRequest(request, now, outbox);
}

void Scheduler::Impl::FinishRequest(PendingRequest& request, Clock::TimePoint now, Outbox& outbox) {
  queue_bytes -= request.request.request_bytes;
  tenants.Leave(request.tenant);
  for (const auto& group : request.groups) classes.Leave(group->shape_class);
  if (queue_requests > 0) {
    answer_interval += (now - last_answer - answer_interval) / kIntervalShare;
  }
  last_answer = now;
  const auto found = requests.find(request.ticket);
  outbox.Answer(std::move(found->second));
  requests.erase(found);
}

}  // namespace attnd
