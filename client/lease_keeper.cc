#include "client/lease_keeper.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "client/call_error.h"

namespace attnd::client {

LeaseKeeper::LeaseKeeper(LeaseKeeperOptions options, std::shared_ptr<TimeSource> time, Renew renew)
    : options_(std::move(options)),
      time_(std::move(time)),
      renew_(std::move(renew)),
      thread_([this] { Run(); }) {}

LeaseKeeper::~LeaseKeeper() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void LeaseKeeper::Add(const std::string& sequence_id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  sequences_.insert(sequence_id);
}

void LeaseKeeper::Remove(const std::string& sequence_id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  sequences_.erase(sequence_id);
}

std::int64_t LeaseKeeper::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<std::int64_t>(sequences_.size());
}

absl::Status LeaseKeeper::RenewNow() {
  std::vector<std::string> ids;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ids.assign(sequences_.begin(), sequences_.end());
  }
  const auto per_call = static_cast<std::size_t>(std::max(1, options_.max_sequences_per_call));
  for (std::size_t first = 0; first < ids.size(); first += per_call) {
    v1::RenewSequencesRequest request;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(options_.lease);
    request.mutable_lease()->set_seconds(seconds.count());
    request.mutable_lease()->set_nanos(
        static_cast<std::int32_t>((options_.lease - seconds).count()));
    for (std::size_t i = first; i < std::min(first + per_call, ids.size()); ++i) {
      request.add_sequence_ids(ids[i]);
    }
    if (absl::Status status = RenewBatch(request); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status LeaseKeeper::RenewBatch(const v1::RenewSequencesRequest& request) {
  // A round may take as long as the gap to the next one, retries included.
  const absl::StatusOr<v1::RenewSequencesResponse> reply = renew_(request, options_.interval);
  if (!reply.ok()) return reply.status();
  for (const v1::SequenceFailure& failure : reply->failures()) {
    const absl::Status status = StatusFromProto(failure.status());
    if (status.code() != absl::StatusCode::kNotFound &&
        DescribeError(status).reason != v1::REASON_OTHER_SERVER) {
      continue;
    }
    Remove(failure.sequence_id());
    if (options_.on_lost) options_.on_lost(failure.sequence_id(), status);
  }
  return absl::OkStatus();
}

void LeaseKeeper::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  TimePoint next = time_->Now() + options_.interval;
  while (!stopping_) {
    if (time_->Now() < next) {
      time_->WaitUntil(lock, changed_, next);
      continue;
    }
    next = time_->Now() + options_.interval;
    lock.unlock();
    // A failed round is not fatal: the interval leaves time for the next one before leases end.
    RenewNow().IgnoreError();
    lock.lock();
  }
}

}  // namespace attnd::client
