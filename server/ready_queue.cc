#include "server/ready_queue.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/naive_library.h"
#include "server/error_status.h"

namespace attnd {
namespace {

// Multiply-adds per second and thread before anything was measured: low, so that the first chunk is
// short; the next ones follow the measurement.
constexpr double kFirstEstimate = 2e9;
// Share of the newest measurement in the running average.
constexpr double kNewShare = 0.3;
// A row's copy and append, in keys: about 1 us against 40 ns of arithmetic a key.
constexpr double kKeysPerRow = 24;

absl::Status NoKernel(const ShapeClass& shape, const kernels::DeviceLimits& device) {
  if (shape.operation == kernels::Operation::kNaive) {
    if (const char* fault = kernels::NaiveFault(device.kind)) {
      return ErrorStatus(absl::StatusCode::kUnimplemented, v1::REASON_UNSUPPORTED,
                         "execution.algorithm",
                         absl::StrCat("got ALGORITHM_NAIVE, need ALGORITHM_FUSED or "
                                      "ALGORITHM_AUTO: ",
                                      fault));
    }
  }
  std::string message =
      absl::StrCat("no kernel serves head_dim ", shape.head_dim, " with these types; there are:");
  for (const kernels::KernelRow& row : kernels::KernelTable()) {
    if (row.device != device.kind) continue;
    absl::StrAppend(&message, " ", row.name, " (head_dim up to ", row.max_head_dim, ")");
  }
  return ErrorStatus(absl::StatusCode::kUnimplemented, v1::REASON_UNSUPPORTED, "", message);
}

}  // namespace

ShapeClassTable::ShapeClassTable(const kernels::DeviceLimits& device)
    : device_(device), estimate_(kFirstEstimate * std::max(1, device.num_threads)) {}

absl::StatusOr<std::uint32_t> ShapeClassTable::Enter(const ShapeClass& shape) {
  const auto found = index_.find(shape);
  if (found != index_.end()) {
    ++users_[found->second];
    return found->second;
  }
  const kernels::KernelRow* row = FindRow(shape, device_);
  if (row == nullptr) return NoKernel(shape, device_);
  const std::uint32_t index = NewSlot();
  index_.emplace(shape, index);
  shapes_[index] = shape;
  rows_[index] = row;
  work_per_second_[index] = estimate_;
  measured_[index] = false;
  users_[index] = 1;
  return index;
}

std::uint32_t ShapeClassTable::NewSlot() {
  if (shapes_.size() >= kMaxClasses) {
    for (std::size_t tried = 0; tried < shapes_.size(); ++tried) {
      hand_ = (hand_ + 1) % shapes_.size();
      if (users_[hand_] > 0) continue;
      index_.erase(shapes_[hand_]);
      return static_cast<std::uint32_t>(hand_);
    }
  }
  const auto index = static_cast<std::uint32_t>(shapes_.size());
  shapes_.emplace_back();
  rows_.push_back(nullptr);
  work_per_second_.push_back(0);
  measured_.push_back(false);
  users_.push_back(0);
  return index;
}

void ShapeClassTable::Measure(std::uint32_t index, double work, double seconds) {
  if (work <= 0 || seconds <= 0) return;
  const double rate = work / seconds;
  double& average = work_per_second_[index];
  average = measured_[index] ? (1 - kNewShare) * average + kNewShare * rate : rate;
  measured_[index] = true;
  estimate_ = average;
}

std::uint32_t TenantTable::Enter(const std::string& tenant) {
  const double level = LeastActive();
  const auto found = index_.find(tenant);
  if (found != index_.end()) {
    const std::uint32_t known = found->second;
    if (requests_[known]++ == 0) used_[known] = std::max(used_[known], level);
    return known;
  }
  const std::uint32_t index = NewSlot();
  index_.emplace(tenant, index);
  names_[index] = tenant;
  used_[index] = level;
  requests_[index] = 1;
  return index;
}

// A newcomer starts level with the tenant that has used least, not with a credit for its absence.
double TenantTable::LeastActive() const {
  double least = 0;
  bool any = false;
  for (std::size_t i = 0; i < used_.size(); ++i) {
    if (requests_[i] == 0) continue;
    least = any ? std::min(least, used_[i]) : used_[i];
    any = true;
  }
  return least;
}

std::uint32_t TenantTable::NewSlot() {
  while (idle_.size() > kRememberedTenants) {
    const std::uint32_t index = idle_.front();
    idle_.pop_front();
    in_idle_[index] = false;
    if (requests_[index] > 0) continue;  // it came back meanwhile
    index_.erase(names_[index]);
    return index;
  }
  names_.emplace_back();
  used_.push_back(0);
  requests_.push_back(0);
  in_idle_.push_back(false);
  return static_cast<std::uint32_t>(names_.size() - 1);
}

void TenantTable::Leave(std::uint32_t index) {
  if (--requests_[index] > 0 || in_idle_[index]) return;
  in_idle_[index] = true;
  idle_.push_back(index);
}

void TenantTable::Charge(std::uint32_t index, double work) { used_[index] += work; }

PrefillWork RemainingWork(const WorkItem& item, const ShapeClass& shape) {
  PrefillWork work;
  work.tokens = item.num_tokens - item.launched_tokens;
  work.divisible = shape.operation != kernels::Operation::kNaive;
  const double row_elements = static_cast<double>(shape.num_heads) * shape.head_dim;
  work.work_per_key = 2 * row_elements;
  work.work_per_row = kKeysPerRow * 2 * row_elements;
  const AttentionRequest& request = item.request->request;
  if (!request.q.present) {  // append only: copying
    work.work_per_key = 0;
    work.causal = false;
    return work;
  }
  std::int64_t kv_length = 0, first = 0, window_left = kernels::kUnlimitedWindow;
  if (item.sequence != nullptr) {
    window_left = item.sequence->shape->options(item.layer).options.window_left;
    work.causal = item.kind != StepKind::kAttendOnly;
    kv_length = item.claim.position + (work.causal ? item.num_tokens : 0);
    first = item.claim.position + item.launched_tokens + 1;
  } else {
    const AttendSequence& sequence = request.attend_sequences[static_cast<std::size_t>(item.index)];
    window_left = item.request->attend_options.window_left;
    work.causal = request.options.causal;
    kv_length = sequence.kv_length;
    first = sequence.query_position + item.launched_tokens - sequence.key_position + 1;
  }
  work.max_visible = kv_length;
  if (window_left != kernels::kUnlimitedWindow && work.causal) {
    work.max_visible = std::min(kv_length, window_left + 1);
  }
  work.first_visible =
      work.causal ? std::clamp<std::int64_t>(first, 0, work.max_visible) : work.max_visible;
  return work;
}

void ReadyQueue::Add(WorkItem& item, const ShapeClassTable& classes) {
  PendingRequest& request = *item.request;
  if (item.group->queue_class == QueueClass::kPrefill) {
    if (request.prefill_queued == kMaxPrefillGroups) {
      item.state = WorkItem::State::kHeldBack;
      request.held_back.push_back(&item);
      return;
    }
    ++request.prefill_queued;
  }
  Insert(item, classes.shape(item.group->shape_class));
}

void ReadyQueue::Remove(WorkItem& item, const ShapeClassTable& classes) {
  Erase(item, classes.shape(item.group->shape_class));
  if (item.group->queue_class != QueueClass::kPrefill) return;
  PendingRequest& request = *item.request;
  --request.prefill_queued;
  while (request.next_held_back < request.held_back.size()) {
    WorkItem& next = *request.held_back[request.next_held_back++];
    if (next.state != WorkItem::State::kHeldBack) continue;
    Add(next, classes);
    return;
  }
}

void ReadyQueue::Insert(WorkItem& item, const ShapeClass& shape) {
  WorkGroup& group = *item.group;
  item.state = WorkItem::State::kReady;
  const PrefillWork work = RemainingWork(item, shape);
  if (group.entry == WorkGroup::kNotQueued) {
    const PendingRequest& request = *group.request;
    group.entry = entries_.size();
    QueueEntry& entry = entries_.emplace_back();
    entry.shape_class = group.shape_class;
    entry.queue_class = group.queue_class;
    entry.alone = request.request.execution.alone;
    entry.priority = request.request.execution.priority;
    entry.tenant = request.tenant;
    entry.deadline = request.request.deadline;
    entry.admitted = request.admitted;
    entry.order = request.order;
    entry.owner = &group;
  }
  QueueEntry& entry = entries_[group.entry];
  if (group.queue_class == QueueClass::kPrefill) entry.prefill = work;
  entry.most_tokens = std::max<std::int64_t>(entry.most_tokens, work.tokens);
  group.ready.push_back(&item);
  Refresh(group, WorkOf(work, work.tokens), work.tokens);
}

void ReadyQueue::Erase(WorkItem& item, const ShapeClass& shape) {
  WorkGroup& group = *item.group;
  const PrefillWork work = RemainingWork(item, shape);
  if (&group.front() == &item) {
    ++group.head;
  } else {
    group.ready.erase(std::find(group.ready.begin(), group.ready.end(), &item));
  }
  Refresh(group, -WorkOf(work, work.tokens), -work.tokens);
  if (group.size() > 0) return;
  group.ready.clear();
  group.head = 0;
  const std::size_t hole = group.entry;
  group.entry = WorkGroup::kNotQueued;
  if (hole + 1 != entries_.size()) {
    entries_[hole] = entries_.back();
    static_cast<WorkGroup*>(entries_[hole].owner)->entry = hole;
  }
  entries_.pop_back();
}

void ReadyQueue::Refresh(WorkGroup& group, double work_change, std::int64_t token_change) {
  QueueEntry& entry = entries_[group.entry];
  entry.sequences = static_cast<std::int32_t>(group.size());
  entry.tokens += token_change;
  entry.work += work_change;
}

}  // namespace attnd
