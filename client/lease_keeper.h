// Renews the leases of many sequences in bulk, on a thread of its own, so that sequences that rest
// between steps do not expire.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "attnd/v1/attention.pb.h"
#include "client/time_source.h"

namespace attnd::client {

struct LeaseKeeperOptions {
  // Asked for at each renewal. The server may clip it to limits.max_lease: ask for no more than
  // that.
  Duration lease = std::chrono::minutes(10);
  // Between renewals. A third of the lease leaves room for two failed rounds.
  Duration interval = std::chrono::minutes(3);
  int max_sequences_per_call = 256;  // at most limits.max_steps
  // A sequence whose lease is lost for good (NOT_FOUND, OTHER_SERVER): it is kept no longer.
  // Runs on the keeper's thread, or on the one that calls RenewNow.
  std::function<void(const std::string& sequence_id, const absl::Status& status)> on_lost;
};

// Thread-safe.
class LeaseKeeper {
 public:
  using Renew = std::function<absl::StatusOr<v1::RenewSequencesResponse>(
      const v1::RenewSequencesRequest& request, Duration timeout)>;

  // `renew` sends one bulk call and may block; AttentionClient::KeepLeases supplies it.
  LeaseKeeper(LeaseKeeperOptions options, std::shared_ptr<TimeSource> time, Renew renew);
  // Waits for a renewal under way. Leases then run out by themselves.
  ~LeaseKeeper();
  LeaseKeeper(const LeaseKeeper&) = delete;
  LeaseKeeper& operator=(const LeaseKeeper&) = delete;

  void Add(const std::string& sequence_id);
  void Remove(const std::string& sequence_id);
  std::int64_t size() const;

  // One round at once, on this thread. The first call that failed as a whole ends the round; its
  // sequences stay and the next round tries them again.
  absl::Status RenewNow();

 private:
  void Run();
  absl::Status RenewBatch(const v1::RenewSequencesRequest& request);

  const LeaseKeeperOptions options_;
  const std::shared_ptr<TimeSource> time_;
  const Renew renew_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::string> sequences_;  // guarded by mutex_
  bool stopping_ = false;            // guarded by mutex_
  std::thread thread_;
};

}  // namespace attnd::client
