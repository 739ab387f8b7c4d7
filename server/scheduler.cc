#include "server/scheduler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/error_status.h"
#include "server/scheduler_impl.h"

namespace attnd {
namespace {

// Stale reads of freed pages must show where tests run: not in optimised builds, where filling
// every freed page costs as much as a decode step.
#if !defined(NDEBUG) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kPoisonFreedPages = true;
#else
constexpr bool kPoisonFreedPages = false;
#endif

// Bytes that one token of the smallest layer takes: K and V of one head, 32 elements of 2 bytes.
constexpr std::int64_t kLeastTokenBytes = 128;
// What a client is told to wait when the server goes away: about what a restart takes.
constexpr Clock::Duration kDrainingRetry = std::chrono::seconds(1);
// Deadline entries of answered requests that are tolerated before the heap is rebuilt.
constexpr std::size_t kStaleDeadlines = 4096;

// How long a generation takes at most from an answer to its next step and still counts as going on:
// longer than a client beside the server needs, a tenth of a prefill launch.
constexpr Clock::Duration kDecodeGap = std::chrono::milliseconds(2);

// Only host memory can be filled from here; and a page that moves out is given away before the
// backend has copied it.
bool MayPoison(const BackendLimits& limits) {
  return kPoisonFreedPages && limits.pool != nullptr && limits.host_pool_bytes == 0 &&
         limits.device.kind == kernels::DeviceKind::kCpu;
}

BatchPolicyConfig PolicyOf(const ServerConfig& config, const BackendLimits& limits) {
  BatchPolicyConfig policy;
  policy.max_batch_sequences = config.max_batch_sequences;
  policy.max_batch_tokens = config.max_batch_tokens;
  policy.max_queue_delay = config.max_queue_delay;
  policy.prefill_chunk_time = config.prefill_chunk_time;
  policy.decode_share = config.decode_share_percent / 100.0;
  policy.decode_gap = kDecodeGap;
  policy.max_batches_in_flight = limits.max_batches_in_flight;
  return policy;
}

std::int64_t EffectiveMaxTokens(const ServerConfig& config, const BackendLimits& limits) {
  const std::int64_t usable = limits.pool_bytes / PagePool::kSlabBytes * PagePool::kSlabBytes;
  return std::min(config.max_tokens, usable / kLeastTokenBytes);
}

SequenceStore::Options StoreOptions(const ServerConfig& config, std::string start_key,
                                    std::int64_t max_tokens) {
  SequenceStore::Options options;
  options.server_name = config.server_name;
  options.start_key = std::move(start_key);
  options.peers = config.peers;
  options.default_lease = config.default_lease;
  options.max_lease = config.max_lease;
  options.max_sequences = config.max_sequences;
  options.max_tokens = max_tokens;
  options.window_slack_tokens = config.window_slack_tokens;
  options.page_tokens = config.page_tokens;
  return options;
}

// For work that the process would have taken: its successor may.
absl::Status DrainingStatus() {
  return WithRetryDelay(ErrorStatus(absl::StatusCode::kUnavailable, v1::REASON_DRAINING, "",
                                    "the server is draining"),
                        kDrainingRetry);
}

// A retiring server takes no new sequence ever again: trying again here cannot help.
absl::Status RetiringStatus() {
  return ErrorStatus(absl::StatusCode::kUnavailable, v1::REASON_DRAINING, "",
                     "the server is draining: it takes no new sequences, another server may");
}

absl::Status DeadlineStatus() {
  return ErrorStatus(absl::StatusCode::kDeadlineExceeded, v1::REASON_DEADLINE, "",
                     "the deadline passed before the work was launched");
}

}  // namespace

Scheduler::Impl::Impl(const ServerConfig& server_config, std::string start_key,
                      const Clock& steady_clock, AttentionBackend& device, Metrics& all_metrics)
    : config(server_config),
      clock(steady_clock),
      backend(device),
      metrics(all_metrics),
      policy(PolicyOf(server_config, device.limits())),
      max_tokens_effective(EffectiveMaxTokens(server_config, device.limits())),
      pool({device.limits().pool, device.limits().pool_bytes, MayPoison(device.limits())}),
      host_cache(device.limits().host_pool_bytes, pool),
      store(StoreOptions(server_config, std::move(start_key), max_tokens_effective), pool,
            &host_cache),
      classes(device.limits().device),
      arrivals(server_config.max_queue_requests),
      has_timer(steady_clock.RunsByItself()) {
  if (has_timer) timer = std::thread([this] { TimerLoop(); });
}

Scheduler::Impl::~Impl() {
  {
    Outbox outbox;
    MutexLock lock(mutex);
    stopping = true;
    timer_stop = true;
    FailAllWaiting(DrainingStatus(), clock.Now(), outbox);
    timer_changed.notify_all();
  }
  if (timer.joinable()) timer.join();
  MutexLock lock(mutex);
  while (batches_in_flight > 0) idle_changed.wait(mutex);
}

absl::Status Scheduler::Impl::RefusalOfNewWork(bool creates) {
  if (device_fault) {
    return ErrorStatus(absl::StatusCode::kUnavailable, v1::REASON_DEVICE_FAULT, "",
                       "the device has failed");
  }
  if (stopping || (creates && retiring)) {
    metrics.RecordRejected(RejectReason::kDraining);
    return stopping ? DrainingStatus() : RetiringStatus();
  }
  return absl::OkStatus();
}

Ticket Scheduler::Impl::Submit(AttentionRequest request) {
  Outbox outbox;
  auto pending = std::make_unique<PendingRequest>();
  pending->request = std::move(request);
  MutexLock lock(mutex);
  const Clock::TimePoint now = clock.Now();
  absl::Status refusal = RefusalOfNewWork(/*creates=*/false);
  if (refusal.ok()) refusal = CheckBounds(pending->request, now);
  const Ticket ticket = ++last_ticket;
  pending->ticket = ticket;
  if (!refusal.ok()) {
    pending->result.status = std::move(refusal);
    outbox.Answer(std::move(pending));
    return ticket;
  }
  PendingRequest& admitted = *pending;
  admitted.admitted = now;
  admitted.order = ticket;
  admitted.tenant = tenants.Enter(admitted.request.tenant);
  queue_bytes += admitted.request.request_bytes;
  requests.emplace(ticket, std::move(pending));
  Admit(admitted, outbox);
  Pump(now, outbox, RunOn::kSubmitter);
  const auto waiting = requests.find(ticket);
  if (waiting != requests.end()) WatchDeadline(*waiting->second);
  return ticket;
}

void Scheduler::Impl::Cancel(Ticket ticket) {
  Outbox outbox;
  MutexLock lock(mutex);
  const auto found = requests.find(ticket);
  if (found == requests.end()) return;
  const Clock::TimePoint now = clock.Now();
  FailWaiting(*found->second,
              ErrorStatus(absl::StatusCode::kCancelled, v1::REASON_CANCELLED, "",
                          "the call was cancelled before it was launched"),
              now, outbox);
  Pump(now, outbox);
  idle_changed.notify_all();
}

void Scheduler::Impl::WatchDeadline(const PendingRequest& request) {
  if (request.items_waiting == 0 || request.request.deadline == Clock::kNever) return;
  if (deadlines.size() >= kStaleDeadlines && deadlines.size() >= 2 * requests.size()) {
    deadlines.erase(std::remove_if(deadlines.begin(), deadlines.end(),
                                   [this](const DeadlineEntry& entry) {
                                     mutex.AssertHeld();
                                     return !requests.contains(entry.ticket);
                                   }),
                    deadlines.end());
    std::make_heap(deadlines.begin(), deadlines.end(), LaterDeadline);
  }
  deadlines.push_back({request.request.deadline, request.ticket});
  std::push_heap(deadlines.begin(), deadlines.end(), LaterDeadline);
  NoticeEarlierWake();
}

void Scheduler::Impl::ExpireDue(Clock::TimePoint now, Outbox& outbox) {
  while (!deadlines.empty() && deadlines.front().deadline <= now) {
    const Ticket ticket = deadlines.front().ticket;
    std::pop_heap(deadlines.begin(), deadlines.end(), LaterDeadline);
    deadlines.pop_back();
    const auto found = requests.find(ticket);
    if (found == requests.end() || found->second->items_waiting == 0) continue;
    metrics.RecordRejected(RejectReason::kDeadline);
    FailWaiting(*found->second, DeadlineStatus(), now, outbox);
  }
  while (Sequence* expired = store.NextExpired(now)) {
    EndSequence(*expired, SequenceEnd::kExpired, now, outbox);
  }
}

void Scheduler::Impl::RunDueWork() {
  Outbox outbox;
  MutexLock lock(mutex);
  Pump(clock.Now(), outbox);
  idle_changed.notify_all();
}

Clock::TimePoint Scheduler::Impl::NextWake() const {
  Clock::TimePoint wake = std::min(batch_wake, store.NextLeaseCheck());
  if (!deadlines.empty()) wake = std::min(wake, deadlines.front().deadline);
  return wake;
}

void Scheduler::Impl::NoticeEarlierWake() {
  if (has_timer && NextWake() < timer_wake) timer_changed.notify_one();
}

void Scheduler::Impl::TimerLoop() {
  constexpr Clock::Duration kLongestWait = std::chrono::hours(1);
  while (true) {
    Outbox outbox;
    MutexLock lock(mutex);
    if (timer_stop) return;
    const Clock::TimePoint now = clock.Now();
    const Clock::TimePoint wake = NextWake();
    if (wake <= now) {
      Pump(now, outbox);
      idle_changed.notify_all();
      continue;
    }
    timer_wake = wake;
    timer_changed.wait_for(mutex, std::min<Clock::Duration>(wake - now, kLongestWait));
    timer_wake = Clock::TimePoint::min();
  }
}

void Scheduler::Impl::Drain(Clock::Duration timeout) {
  Outbox outbox;
  MutexLock lock(mutex);
  idle_changed.wait_for(mutex, timeout, [this] {
    mutex.AssertHeld();
    return requests.empty() && batches_in_flight == 0;
  });
  FailAllWaiting(DrainingStatus(), clock.Now(), outbox);
}

Scheduler::Snapshot Scheduler::Impl::GetSnapshot() const {
  MutexLock lock(mutex);
  Snapshot snapshot;
  snapshot.queue_requests = queue_requests;
  snapshot.queue_bytes = queue_bytes;
  snapshot.running_requests = running_requests;
  snapshot.running_batches = batches_in_flight;
  snapshot.sequences_active = sequences_active;
  snapshot.sequences_idle = store.num_owned() - sequences_active;
  const PagePool::Usage& usage = pool.usage();
  snapshot.slabs_total = usage.slabs_total;
  snapshot.slabs_free = usage.slabs_free;
  snapshot.pool_bytes = pool.pool_bytes();
  snapshot.used_bytes = usage.bytes - usage.reserved_bytes;
  snapshot.reserved_bytes = usage.reserved_bytes;
  snapshot.pages_used = usage.pages;
  snapshot.pages_shared = usage.shared_pages;
  const HostCache::Usage host = host_cache.usage();
  snapshot.host_bytes = host.bytes;
  snapshot.host_used_bytes = host.used_bytes;
  snapshot.moved_out_bytes = host.moved_out_bytes;
  snapshot.moved_in_bytes = host.moved_in_bytes;
  snapshot.device_fault = device_fault;
  snapshot.last_submit = last_submit;
  snapshot.last_completion = last_completion;
  snapshot.max_tokens_effective = max_tokens_effective;
  return snapshot;
}

Scheduler::Scheduler(const ServerConfig& config, std::string start_key, const Clock& clock,
                     AttentionBackend& backend, Metrics& metrics)
    : impl_(std::make_unique<Impl>(config, std::move(start_key), clock, backend, metrics)) {}
Scheduler::~Scheduler() = default;

Ticket Scheduler::Submit(AttentionRequest request) { return impl_->Submit(std::move(request)); }
absl::Status Scheduler::TakePlace(ArrivalPlace& place) { return impl_->TakePlace(place); }
void Scheduler::LeavePlace(ArrivalPlace& place) { impl_->arrivals.Leave(place); }
void Scheduler::Cancel(Ticket ticket) { impl_->Cancel(ticket); }
void Scheduler::RunDueWork() { impl_->RunDueWork(); }
void Scheduler::Drain(Clock::Duration timeout) { impl_->Drain(timeout); }
Scheduler::Snapshot Scheduler::GetSnapshot() const { return impl_->GetSnapshot(); }

absl::StatusOr<SequenceGrant> Scheduler::CreateSequence(const CreateSequenceSpec& spec) {
  return impl_->CreateSequence(spec);
}

void Scheduler::ForkSequence(ForkSequenceSpec spec,
                             absl::AnyInvocable<void(absl::StatusOr<SequenceGrant>)> done) {
  impl_->ForkSequence(std::move(spec), std::move(done));
}

absl::StatusOr<SequenceInfo> Scheduler::GetSequence(const std::string& tenant,
                                                    const std::string& sequence_id) {
  MutexLock lock(impl_->mutex);
  const absl::StatusOr<Sequence*> found = impl_->store.Find(tenant, sequence_id);
  if (!found.ok()) return found.status();
  return impl_->store.Describe(**found, impl_->clock.Now());
}

absl::StatusOr<SequenceList> Scheduler::ListSequences(const std::string& tenant,
                                                      std::int32_t page_size,
                                                      const std::string& page_token) {
  MutexLock lock(impl_->mutex);
  return impl_->store.List(tenant, page_size, page_token, impl_->clock.Now());
}

std::vector<SequenceFailureValue> Scheduler::RenewSequences(
    const std::string& tenant, absl::Span<const std::string> sequence_ids,
    std::optional<Clock::Duration> lease) {
  return impl_->RenewSequences(tenant, sequence_ids, lease);
}

void Scheduler::TruncateSequences(
    std::string tenant, std::vector<std::string> sequence_ids, std::int64_t num_tokens,
    std::uint64_t epoch, absl::AnyInvocable<void(std::vector<SequenceFailureValue>)> done) {
  impl_->TruncateSequences(tenant, std::move(sequence_ids), num_tokens, epoch, std::move(done));
}

void Scheduler::DeleteSequences(std::string tenant, std::vector<std::string> sequence_ids,
                                absl::AnyInvocable<void(std::vector<SequenceFailureValue>)> done) {
  impl_->DeleteSequences(tenant, std::move(sequence_ids), std::move(done));
}

void Scheduler::BeginRetire() {
  MutexLock lock(impl_->mutex);
  if (impl_->retiring) return;
  impl_->retiring = true;
  impl_->store.LimitLeases(impl_->clock.Now() + impl_->config.retire_limit);
  impl_->NoticeEarlierWake();
}

void Scheduler::BeginStop() {
  MutexLock lock(impl_->mutex);
  impl_->stopping = true;
}

bool Scheduler::Idle() const {
  MutexLock lock(impl_->mutex);
  return impl_->requests.empty() && impl_->batches_in_flight == 0;
}

bool Scheduler::NoSequences() const {
  MutexLock lock(impl_->mutex);
  return impl_->store.empty();
}

}  // namespace attnd
