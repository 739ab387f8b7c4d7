// From a validated request to items in the queue: bounds, sequences, positions, kernels, pages.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/error_status.h"
#include "server/scheduler_impl.h"
#include "server/sequence_pages.h"

namespace attnd {
namespace {

// Rows that the workspace of a divisible item is planned for: one query tile, the least that a
// launch may be cut to.
constexpr std::int32_t kSmallestChunk = 64;
constexpr Clock::Duration kShortestRetry = std::chrono::milliseconds(1);
constexpr Clock::Duration kLongestRetry = std::chrono::seconds(5);

bool FewRows(std::int64_t tokens, std::int32_t num_heads, std::int32_t num_kv_heads) {
  return tokens * (num_heads / num_kv_heads) <= kernels::kMaxDecodeRows;
}

// The tensors are the whole request's; the step only says for which sequence they are wrong.
absl::Status WrongTensor(const std::string& field, const std::string& got, const std::string& need,
                         std::int32_t step_index) {
  v1::ErrorDetail detail;
  detail.set_reason(v1::REASON_INVALID_FIELD);
  detail.set_field(field);
  detail.set_step_index(step_index);
  return ErrorStatus(absl::StatusCode::kInvalidArgument, detail,
                     absl::StrCat(field, ": got ", got, ", need ", need,
                                  " as the sequence of steps[", step_index, "]"));
}

std::string HeadsText(std::int32_t heads, const char* kind, std::int32_t head_dim) {
  return absl::StrCat(heads, kind, " of head_dim ", head_dim);
}

absl::Status CheckHeadShape(const AttentionRequest& request, const SequenceShape& shape,
                            std::int32_t step_index) {
  const bool q_sent = request.num_heads != 0;
  if (request.data_type != shape.data_type) {
    return WrongTensor(q_sent ? "q.data_type" : "k.data_type", DataTypeName(request.data_type),
                       DataTypeName(shape.data_type), step_index);
  }
  if (q_sent && (request.num_heads != shape.num_heads || request.head_dim != shape.head_dim)) {
    return WrongTensor("q.shape", HeadsText(request.num_heads, " heads", request.head_dim),
                       HeadsText(shape.num_heads, " heads", shape.head_dim), step_index);
  }
  const bool k_sent = request.num_kv_heads != 0;
  if (k_sent &&
      (request.num_kv_heads != shape.num_kv_heads || request.head_dim != shape.head_dim)) {
    return WrongTensor("k.shape", HeadsText(request.num_kv_heads, " KV heads", request.head_dim),
                       HeadsText(shape.num_kv_heads, " KV heads", shape.head_dim), step_index);
  }
  return absl::OkStatus();
}

}  // namespace

Clock::Duration Scheduler::Impl::RetryDelay() const {
  const Clock::Duration drain = answer_interval * (queue_requests + 1);
  return std::clamp<Clock::Duration>(drain, kShortestRetry, kLongestRetry);
}

absl::Status Scheduler::Impl::CheckBounds(const AttentionRequest& request, Clock::TimePoint now) {
  if (request.deadline <= now) {
    metrics.RecordRejected(RejectReason::kDeadline);
    return ErrorStatus(absl::StatusCode::kDeadlineExceeded, v1::REASON_DEADLINE, "",
                       "the deadline had passed on arrival");
  }
  const bool full = queue_requests >= config.max_queue_requests ||
                    request.request_bytes > config.max_queue_bytes - queue_bytes;
  return full ? QueueFull() : absl::OkStatus();
}

absl::Status Scheduler::Impl::QueueFull() {
  metrics.RecordRejected(RejectReason::kQueueFull);
  return WithRetryDelay(
      ErrorStatus(absl::StatusCode::kResourceExhausted, v1::REASON_QUEUE_FULL, "",
                  absl::StrCat("the queue holds ", queue_requests.load(), " requests and ",
                               queue_bytes, " bytes, ", arrivals.held(), " more are on their way")),
      RetryDelay());
}

absl::Status Scheduler::Impl::TakePlace(ArrivalPlace& place) {
  if (arrivals.Enter(place, queue_requests, clock.Now())) return absl::OkStatus();
  MutexLock lock(mutex);
  return QueueFull();
}

void Scheduler::Impl::Admit(PendingRequest& request, Outbox& outbox) {
  const absl::Status status =
      request.request.kind == RequestKind::kAttend ? AdmitAttend(request) : AdmitDecode(request);
  if (!status.ok()) {
    request.result.status = status;
    request.items_unfinished = 0;
  }
  if (request.items_waiting > 0) ++queue_requests;
  if (request.items_unfinished == 0) FinishRequest(request, request.admitted, outbox);
}

absl::Status Scheduler::Impl::AdmitAttend(PendingRequest& pending) {
  const AttentionRequest& request = pending.request;
  pending.attend_options = ResolveOptions(request.options, request.head_dim);
  ShapeClass shape;
  shape.data_type = shape.kv_data_type = request.data_type;
  shape.num_heads = request.num_heads;
  shape.num_kv_heads = request.num_kv_heads;
  shape.head_dim = request.head_dim;
  shape.feature_kinds = pending.attend_options.feature_kinds;
  if (request.bias.present) shape.feature_kinds |= kernels::kFeatureBias;
  shape.partial = request.partial;
  shape.operation = request.execution.algorithm == Algorithm::kNaive ? kernels::Operation::kNaive
                                                                     : kernels::Operation::kPrefill;

  pending.items.resize(request.attend_sequences.size());
  std::int64_t kv_row = 0;
  for (std::size_t i = 0; i < pending.items.size(); ++i) {
    const AttendSequence& sequence = request.attend_sequences[i];
    WorkItem& item = pending.items[i];
    item.request = &pending;
    item.index = static_cast<std::int32_t>(i);
    item.num_tokens = sequence.query_length;
    item.first_row = pending.num_rows;
    item.first_kv_row = kv_row;
    pending.num_rows += sequence.query_length;
    kv_row += sequence.kv_length;
    if (item.num_tokens == 0) {
      item.state = WorkItem::State::kFinished;
      continue;
    }
    if (absl::Status status = JoinGroup(item, shape); !status.ok()) return status;
  }
  for (WorkItem& item : pending.items) {
    if (item.state == WorkItem::State::kFinished) continue;
    ++pending.items_unfinished;
    ++pending.items_waiting;
    queue.Add(item, classes);
  }
  return absl::OkStatus();
}

absl::Status Scheduler::Impl::AdmitDecode(PendingRequest& pending) {
  if (absl::Status status = FindSequences(pending); !status.ok()) return status;
  for (WorkItem& item : pending.items) {
    if (item.failure.ok()) item.failure = AdmitStep(item);
    if (item.failure.ok()) continue;
    item.state = WorkItem::State::kFinished;
    --pending.items_unfinished;
    if (item.sequence != nullptr) store.RestartLease(*item.sequence, pending.admitted);
    item.sequence = nullptr;
  }
  return absl::OkStatus();
}

// Looks up every step's sequence and refuses a request that names a layer twice, before anything
// changes.
absl::Status Scheduler::Impl::FindSequences(PendingRequest& pending) {
  const AttentionRequest& request = pending.request;
  pending.items.resize(request.steps.size());
  pending.items_unfinished = pending.items.size();
  for (std::size_t i = 0; i < pending.items.size(); ++i) {
    const DecodeStep& step = request.steps[i];
    WorkItem& item = pending.items[i];
    item.request = &pending;
    item.index = static_cast<std::int32_t>(i);
    item.layer = step.layer;
    item.num_tokens = step.num_tokens;
    item.first_row = pending.num_rows;
    pending.num_rows += step.num_tokens;
    item.claim = {step.position,       step.num_tokens,   step.epoch,
                  step.query_position, request.k.present, request.q.present};
    absl::StatusOr<Sequence*> found = store.Find(request.tenant, step.sequence_id);
    if (!found.ok()) {
      item.failure = found.status();
      continue;
    }
    item.sequence = *found;
    const SequenceShape& shape = *item.sequence->shape;
    if (step.layer < 0 || step.layer >= shape.num_layers) {
      item.failure = InvalidField("layer", absl::StrCat(step.layer),
                                  absl::StrCat("0 to ", shape.num_layers - 1));
      continue;
    }
    LayerState& layer = item.sequence->layer(step.layer);
    if (layer.last_ticket == pending.ticket) {
      return InvalidField(absl::StrCat("steps[", i, "]"), "a sequence and layer named before",
                          "each (sequence, layer) once in a request");
    }
    layer.last_ticket = pending.ticket;
  }
  return absl::OkStatus();
}

absl::Status Scheduler::Impl::AdmitStep(WorkItem& item) {
  const AttentionRequest& request = item.request->request;
  Sequence& sequence = *item.sequence;
  const SequenceShape& shape = *sequence.shape;
  if (absl::Status status = CheckHeadShape(request, shape, item.index); !status.ok()) return status;
  LayerState& layer = sequence.layer(item.layer);
  const LayerRules rules = store.Rules(sequence, item.layer);
  const StepVerdict verdict = JudgeStep(rules, layer.projected, item.claim);
  if (!verdict.status.ok()) return verdict.status;
  item.kind = verdict.kind;

  ShapeClass launch;
  launch.data_type = shape.data_type;
  launch.kv_data_type = shape.kv_data_type;
  launch.num_heads = shape.num_heads;
  launch.num_kv_heads = shape.num_kv_heads;
  launch.head_dim = shape.head_dim;
  launch.page_tokens = shape.page_layout.page_tokens;
  launch.feature_kinds = shape.options(item.layer).options.feature_kinds;
  launch.partial = request.partial;
  // By the step's own num_tokens, never by a chunk's: the kernel must not depend on the batch.
  if (request.execution.algorithm == Algorithm::kNaive) {
    launch.operation = kernels::Operation::kNaive;
  } else if (FewRows(item.num_tokens, shape.num_heads, shape.num_kv_heads)) {
    launch.operation = kernels::Operation::kDecode;
  }
  if (absl::Status status = JoinGroup(item, launch); !status.ok()) return status;
  absl::Status pages = BringBackPages(item);
  if (pages.ok()) pages = SetAsidePages(item);
  if (!pages.ok()) {
    if (sequence.steps_unfinished == 0) host_cache.NoteIdle(sequence);
    return pages;
  }

  layer.projected = AfterStep(rules, layer.projected, item.claim, item.kind);
  (layer.last_waiting != nullptr ? layer.last_waiting->next_in_layer : layer.first_waiting) = &item;
  layer.last_waiting = &item;
  item.era = sequence.barriers_admitted;
  if (sequence.barriers.empty()) {
    ++sequence.steps_front;
  } else {
    ++sequence.barriers.back().steps_after;
  }
  if (sequence.steps_unfinished++ == 0) {
    ++sequences_active;
    host_cache.NoteBusy(sequence);
  }
  ++item.request->items_waiting;
  WakeLayer(sequence, item.layer);
  return absl::OkStatus();
}

absl::Status Scheduler::Impl::CacheFull(const char* field, std::int64_t pages, int page_class) {
  metrics.RecordRejected(RejectReason::kCacheFull);
  const absl::Status status =
      ErrorStatus(absl::StatusCode::kResourceExhausted, v1::REASON_CACHE_FULL, field,
                  absl::StrCat("needs ", pages, " free pages, has ", pool.Available(page_class)));
  // What an empty pool could not hold is not worth a retry.
  return pages > pool.Capacity(page_class) ? status : WithRetryDelay(status, RetryDelay());
}

absl::Status Scheduler::Impl::BringBackPages(WorkItem& item) {
  Sequence& sequence = *item.sequence;
  LayerState& layer = sequence.layer(item.layer);
  if (host_cache.BringBack(sequence, layer, item.request->ticket)) return absl::OkStatus();
  return CacheFull("sequence_id", static_cast<std::int64_t>(layer.host_pages.size()),
                   sequence.shape->page_class);
}

absl::Status Scheduler::Impl::SetAsidePages(WorkItem& item) {
  if (item.kind != StepKind::kAppend) return absl::OkStatus();
  Sequence& sequence = *item.sequence;
  LayerState& layer = sequence.layer(item.layer);
  StepPagesQuery query;
  query.position = item.claim.position;
  query.num_tokens = item.num_tokens;
  query.steps_before = layer.first_waiting != nullptr;
  query.fork_before = std::any_of(sequence.barriers.begin(), sequence.barriers.end(),
                                  [](const Barrier& barrier) { return barrier.fork.has_value(); });
  const std::int64_t count = PagesForStep(sequence, layer, pool, query);
  if (count == 0) return absl::OkStatus();
  const int page_class = sequence.shape->page_class;
  host_cache.MakeRoom(page_class, count - static_cast<std::int64_t>(layer.reserve.size()),
                      item.request->ticket, &sequence);
  if (SetAside(sequence, layer, pool, count, item.provision)) return absl::OkStatus();
  return CacheFull("num_tokens", count, page_class);
}

absl::Status Scheduler::Impl::JoinGroup(WorkItem& item, const ShapeClass& shape) {
  PendingRequest& request = *item.request;
  const QueueClass queue_class = FewRows(item.num_tokens, shape.num_heads, shape.num_kv_heads)
                                     ? QueueClass::kDecode
                                     : QueueClass::kPrefill;
  if (queue_class == QueueClass::kDecode) {
    for (const auto& group : request.groups) {
      if (group->queue_class == queue_class && classes.shape(group->shape_class) == shape) {
        item.group = group.get();
        return CheckLaunch(item, group->shape_class);
      }
    }
  }
  const absl::StatusOr<std::uint32_t> shape_class = classes.Enter(shape);
  if (!shape_class.ok()) return shape_class.status();
  auto group = std::make_unique<WorkGroup>();
  group->request = &request;
  group->shape_class = *shape_class;
  group->queue_class = queue_class;
  item.group = group.get();
  request.groups.push_back(std::move(group));
  return CheckLaunch(item, *shape_class);
}

absl::Status Scheduler::Impl::CheckLaunch(const WorkItem& item, std::uint32_t shape_class) {
  const ShapeClass& shape = classes.shape(shape_class);
  const bool naive = shape.operation == kernels::Operation::kNaive;
  const bool cut = !naive && item.group->queue_class == QueueClass::kPrefill;
  if (!cut && item.num_tokens > config.max_batch_tokens) {
    return ErrorStatus(
        absl::StatusCode::kOutOfRange, v1::REASON_LIMIT,
        item.sequence != nullptr ? "num_tokens" : "query_lengths",
        absl::StrCat("got ", item.num_tokens, " tokens that run in one launch, need ", "at most ",
                     config.max_batch_tokens, " (--max_batch_tokens)"));
  }
  if (!naive && item.group->queue_class == QueueClass::kDecode) return absl::OkStatus();
  if (!item.request->request.q.present) return absl::OkStatus();
  kernels::AttentionSequence sequence;
  sequence.query_length = naive ? item.num_tokens : std::min(item.num_tokens, kSmallestChunk);
  if (item.sequence != nullptr) {
    sequence.kv_length = item.claim.position + (item.claim.has_kv ? item.num_tokens : 0);
  } else {
    sequence.kv_length =
        item.request->request.attend_sequences[static_cast<std::size_t>(item.index)].kv_length;
  }
  kernels::AttentionParams params;
  params.data_type = shape.data_type;
  params.kv_data_type = shape.kv_data_type;
  params.num_heads = shape.num_heads;
  params.num_kv_heads = shape.num_kv_heads;
  params.head_dim = shape.head_dim;
  params.partial = shape.partial;
  params.sequences = &sequence;
  params.num_sequences = 1;
  const BackendLimits& limits = backend.limits();
  kernels::PlanOptions options;
  options.batch_invariant = config.batch_invariant;
  const kernels::LaunchPlan plan =
      kernels::PlanAttention(classes.row(shape_class), params, limits.device, options);
  if (plan.workspace_bytes <= limits.workspace_bytes) return absl::OkStatus();
  metrics.RecordRejected(RejectReason::kWorkspace);
  return ErrorStatus(
      absl::StatusCode::kResourceExhausted, v1::REASON_WORKSPACE, "",
      absl::StrCat("the launch needs ", plan.workspace_bytes,
                   " bytes of working memory, the server has ", limits.workspace_bytes));
}

}  // namespace attnd
