// Leases of SequenceStore. Every live sequence has one current entry in the heap; answered steps
// only move lease_deadline, the entry catches up when it comes to the top. So a decode step costs
// one store here, not a heap operation.
#include <algorithm>

#include "server/sequence_store.h"

namespace attnd {
namespace {

// A busy sequence cannot expire; it is looked at again after this long.
constexpr Clock::Duration kBusyRecheck = std::chrono::seconds(1);

}  // namespace

void SequenceStore::PushLeaseTimer(Sequence& sequence, Clock::TimePoint deadline) {
  sequence.lease_timer = deadline;
  lease_heap_.push_back({deadline, sequence.key});
  std::push_heap(lease_heap_.begin(), lease_heap_.end(), Later);
}

void SequenceStore::LimitLeases(Clock::TimePoint latest) {
  lease_limit_ = latest;
  for (const auto& [key, sequence] : live_) {
    if (sequence->lease_deadline <= latest) continue;
    sequence->lease_deadline = latest;
    if (latest < sequence->lease_timer) PushLeaseTimer(*sequence, latest);
  }
}

void SequenceStore::SetLease(Sequence& sequence, std::optional<Clock::Duration> lease,
                             Clock::TimePoint now) {
  sequence.lease = std::min(lease.value_or(options_.default_lease), options_.max_lease);
  RestartLease(sequence, now);
  if (sequence.lease_deadline < sequence.lease_timer) {
    PushLeaseTimer(sequence, sequence.lease_deadline);
  }
}

void SequenceStore::RestartLease(Sequence& sequence, Clock::TimePoint now) {
  sequence.lease_deadline = std::min(now + sequence.lease, lease_limit_);
}

Sequence* SequenceStore::NextExpired(Clock::TimePoint now) {
  while (!lease_heap_.empty() && lease_heap_.front().deadline <= now) {
    const LeaseTimer timer = lease_heap_.front();
    std::pop_heap(lease_heap_.begin(), lease_heap_.end(), Later);
    lease_heap_.pop_back();
    const auto found = live_.find(timer.key);
    if (found == live_.end()) continue;
    Sequence& sequence = *found->second;
    if (timer.deadline != sequence.lease_timer) continue;  // an earlier entry took over
    if (sequence.steps_unfinished > 0 || !sequence.barriers.empty()) {
      PushLeaseTimer(sequence, std::max(sequence.lease_deadline, now + kBusyRecheck));
    } else if (sequence.lease_deadline > now) {
      PushLeaseTimer(sequence, sequence.lease_deadline);
    } else {
      return &sequence;
    }
  }
  return nullptr;
}

Clock::TimePoint SequenceStore::NextLeaseCheck() const {
  return lease_heap_.empty() ? Clock::kNever : lease_heap_.front().deadline;
}

}  // namespace attnd
