// From the queue to the backend: asks the policy, places pages, packs and submits batches.
#include <algorithm>

#include "server/scheduler_impl.h"
#include "server/sequence_pages.h"

namespace attnd {

void Scheduler::Impl::WakeLayer(Sequence& sequence, std::int32_t layer) {
  WorkItem* item = sequence.layer(layer).first_waiting;
  if (item == nullptr || item->state != WorkItem::State::kWaiting) return;
  if (item->era != sequence.barriers_done) return;
  queue.Add(*item, classes);
}

void Scheduler::Impl::Pump(Clock::TimePoint now, Outbox& outbox, RunOn run_on) {
  batch_wake = Clock::kNever;
  ExpireDue(now, outbox);
  while (!device_fault) {
    QueueView view;
    view.entries = queue.entries();
    view.tenant_used = tenants.used();
    view.work_per_second = classes.work_per_second();
    view.batches_in_flight = batches_in_flight;
    view.prefill_batches_in_flight = prefill_in_flight;
    view.turns = turns;
    const BatchDecision decision = DecideBatch(policy, view, now);
    if (decision.kind != BatchDecision::Kind::kDispatch) {
      batch_wake = decision.wait_until;
      break;
    }
    Launch(decision, now, run_on, outbox);
  }
  NoticeEarlierWake();
}

std::unique_ptr<Batch> Scheduler::Impl::TakeBatch() {
  if (spare_batches.empty()) return std::make_unique<Batch>();
  std::unique_ptr<Batch> batch = std::move(spare_batches.back());
  spare_batches.pop_back();
  batch->Reset();
  return batch;
}

std::unique_ptr<RunningBatch> Scheduler::Impl::TakeRunning() {
  if (spare_running.empty()) return std::make_unique<RunningBatch>();
  std::unique_ptr<RunningBatch> running = std::move(spare_running.back());
  spare_running.pop_back();
  running->work = 0;
  running->tokens = running->requests = 0;
  running->parts.clear();
  return running;
}

void Scheduler::Impl::Launch(const BatchDecision& decision, Clock::TimePoint now, RunOn run_on,
                             Outbox& outbox) {
  // Taking items changes the queue's entries, so the groups are looked up first.
  struct Taken {
    WorkGroup* group;
    std::int32_t sequences, prefill_tokens;
  };
  absl::InlinedVector<Taken, 4> taken;
  for (const BatchDecision::Take& take : decision.takes) {
    taken.push_back({static_cast<WorkGroup*>(queue.entries()[take.entry].owner), take.sequences,
                     take.prefill_tokens});
  }

  std::unique_ptr<Batch> batch = TakeBatch();
  std::unique_ptr<RunningBatch> running = TakeRunning();
  running->shape_class = taken.front().group->shape_class;
  running->queue_class = taken.front().group->queue_class;
  batch->shape = classes.shape(running->shape_class);
  batch->plan_options.batch_invariant = config.batch_invariant;
  host_cache.TakeCopies(batch->copies);

  ++batch_number;
  for (const Taken& take : taken) {
    PendingRequest& request = *take.group->request;
    if (!request.launched) MarkFirstLaunch(request, running->queue_class, now);
    if (request.last_batch != batch_number) {
      request.last_batch = batch_number;
      ++running->requests;
    }
    const double work_before = running->work;
    for (std::int32_t i = 0; i < take.sequences; ++i) {
      WorkItem& item = take.group->front();
      const std::int32_t tokens =
          running->queue_class == QueueClass::kPrefill ? take.prefill_tokens : item.num_tokens;
      LaunchItem(item, tokens, *batch, *running);
    }
    tenants.Charge(request.tenant, running->work - work_before);
  }
  batch->BindPageTables();

  metrics.RecordBatch(running->requests, static_cast<std::int64_t>(running->parts.size()),
                      running->tokens, decision.closed);
  ++batches_in_flight;
  if (running->queue_class == QueueClass::kPrefill) {
    ++prefill_in_flight;
    turns.decode_since_prefill = false;
  } else {
    turns.decode_since_prefill = true;
    turns.decode_priority = taken.front().group->request->request.execution.priority;
  }
  running->submitted = last_submit = now;
  HandOver(std::move(batch), std::move(running), run_on, outbox);
}

// Under the mutex: batches must reach the backend in the order in which they were formed, because
// a later one may build on an earlier one's pages.
void Scheduler::Impl::HandOver(std::unique_ptr<Batch> batch, std::unique_ptr<RunningBatch> running,
                               RunOn run_on, Outbox& outbox) {
  BatchDone done = [this, state = std::move(running)](std::unique_ptr<Batch> ended,
                                                      BatchResult result) mutable {
    if (state == nullptr) return;  // a backend that reports a batch twice has done it once
    OnBatchDone(std::move(state), std::move(ended), result);
  };
  if (run_on == RunOn::kSubmitter) {
    if (auto run = backend.SubmitHere(batch, done)) return outbox.Call(std::move(run));
  }
  backend.Submit(std::move(batch), std::move(done));
}

void Scheduler::Impl::MarkFirstLaunch(PendingRequest& request, QueueClass queue_class,
                                      Clock::TimePoint now) {
  request.launched = true;
  const Clock::Duration waited = now - request.admitted;
  request.result.execution.queue_time = waited;
  request.outputs = AllocateOutputs(request.request, request.num_rows);
  metrics.RecordQueueWait(queue_class, waited);
  metrics.RecordStage(Stage::kQueue, waited);
}

void Scheduler::Impl::LaunchItem(WorkItem& item, std::int32_t tokens, Batch& batch,
                                 RunningBatch& running) {
  const ShapeClass& shape = batch.shape;
  running.work += WorkOf(RemainingWork(item, shape), tokens);
  running.tokens += tokens;
  queue.Remove(item, classes);
  PendingRequest& request = *item.request;
  const ItemRows rows{item.first_row, item.first_kv_row, item.launched_tokens, tokens};
  if (item.sequence != nullptr) {
    PackStepItem(item, rows, batch);
  } else {
    PackAttend(
        request.request, request.request.attend_sequences[static_cast<std::size_t>(item.index)],
        request.attend_options, rows, request.outputs, item.staged, batch.items.emplace_back());
  }
  item.state = WorkItem::State::kInFlight;
  item.launched_tokens += tokens;
  running.parts.push_back({&item, tokens});
  if (request.items_in_flight++ == 0) ++running_requests;
  if (item.sequence != nullptr) ++item.sequence->steps_running;
  if (!item.launched_whole()) return;

  if (--request.items_waiting == 0) --queue_requests;
  if (item.sequence == nullptr) return;
  LayerState& layer = item.sequence->layer(item.layer);
  if (item.kind == StepKind::kAppend) layer.applied.length = item.claim.position + item.num_tokens;
  layer.first_waiting = item.next_in_layer;
  if (layer.first_waiting == nullptr) layer.last_waiting = nullptr;
  item.next_in_layer = nullptr;
  WakeLayer(*item.sequence, item.layer);
}

void Scheduler::Impl::PackStepItem(WorkItem& item, const ItemRows& rows, Batch& batch) {
  Sequence& sequence = *item.sequence;
  const SequenceShape& shape = *sequence.shape;
  LayerState& layer = sequence.layer(item.layer);
  if (item.kind == StepKind::kAppend && item.launched_tokens == 0) {
    // The cut of a larger epoch takes effect here; the new length when the last chunk is launched.
    if (layer.applied.length > item.claim.position) batch.rewrites = true;
    layer.applied.length = item.claim.position;
    layer.applied.epoch = item.claim.epoch;
    PlaceStep(layer, sequence, pool, item.claim.position, item.num_tokens, item.provision,
              batch.copies, item.released);
  }
  batch.page_layout = shape.page_layout;

  StepView view;
  view.appends = item.kind == StepKind::kAppend;
  view.causal = item.kind != StepKind::kAttendOnly;
  view.first_page_token = layer.applied.freed_tokens;
  view.append_position = item.claim.position + item.launched_tokens;
  view.query_position =
      view.causal ? view.append_position
                  : item.claim.query_position.value_or(item.claim.position) + item.launched_tokens;
  view.visible_end = view.causal ? view.append_position + rows.chunk_rows : item.claim.position;

  const LayerOptions& options = shape.options(item.layer);
  BatchItem& packed = batch.items.emplace_back();
  PackStep(item.request->request, batch.shape, options.options, options.rope, rows, view,
           item.request->outputs, packed);
  packed.page_table_offset = batch.page_tables.size();
  const std::int64_t page_tokens = shape.page_layout.page_tokens;
  const std::int64_t rows_in_table =
      std::max<std::int64_t>(0, view.visible_end - view.first_page_token);
  const auto pages = std::min<std::int64_t>((rows_in_table + page_tokens - 1) / page_tokens,
                                            static_cast<std::int64_t>(layer.pages.size()));
  batch.page_tables.insert(batch.page_tables.end(), layer.pages.begin(),
                           layer.pages.begin() + pages);
}

}  // namespace attnd
