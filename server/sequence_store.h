// Live sequences: ids, tenants, creation keys, leases, and the memory of how the last 65,536 ended.
//
// A sequence id is 24 bytes: 4 of the server's name (hashed), 4 drawn at the server's start, 16
// random ones. Owns the Sequence objects and allocates their first pages from the pool.
//
// Not thread-safe: the scheduler's mutex guards it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/admission.h"
#include "server/host_cache.h"
#include "server/metrics.h"
#include "server/page_pool.h"
#include "server/sequence_state.h"

namespace attnd {

inline constexpr std::size_t kSequenceIdBytes = 24;
inline constexpr std::size_t kRememberedEndings = 65'536;

class SequenceStore {
 public:
  struct Options {
    std::string server_name;
    std::string start_key;           // 4 bytes
    std::vector<std::string> peers;  // name=address
    Clock::Duration default_lease{0}, max_lease{0};
    std::int64_t max_sequences = 0;
    std::int64_t max_tokens = 0;  // the effective limit
    std::int64_t window_slack_tokens = 0;
    int page_tokens = 0;  // 0: by shape
  };
  // `host_cache`, where there is one, makes room for reservations.
  SequenceStore(Options options, PagePool& pool, HostCache* host_cache = nullptr);

  // The live sequence of this tenant; else why there is none.
  absl::StatusOr<Sequence*> Find(std::string_view tenant, std::string_view sequence_id) const;
  std::string IdOf(const Sequence& sequence) const;

  // Both check limits and take the reserved pages; creation keys are the caller's business.
  absl::StatusOr<Sequence*> Create(const CreateSequenceSpec& spec, Clock::TimePoint now);
  // Copies the applied state of every layer; no step of `parent` is unfinished.
  absl::StatusOr<Sequence*> Fork(Sequence& parent, const ForkSequenceSpec& spec,
                                 Clock::TimePoint now);
  // Whether Fork would be OUT_OF_RANGE or WINDOW_PASSED after all admitted steps.
  absl::Status CheckFork(const Sequence& parent, const ForkSequenceSpec& spec,
                         bool projected) const;

  // From now on the id is answered with `reason`. Free gives the memory back.
  void End(Sequence& sequence, SequenceEnd reason);
  void Free(Sequence& sequence);

  // A creation that is known under a key of this tenant.
  struct Creation {
    std::string request_bytes;
    Sequence* sequence = nullptr;  // null: a fork that still waits
    std::vector<ForkDone> waiting;
  };
  // Null: the key is new. ALREADY_EXISTS: it came with another request.
  absl::StatusOr<Creation*> FindCreation(const std::string& tenant, const std::string& key,
                                         const std::string& request_bytes);
  Creation& AddCreation(const std::string& tenant, const std::string& key,
                        const std::string& request_bytes);
  std::optional<Creation> TakeCreation(const std::string& tenant, const std::string& key);

  // Leases. A limit (retiring) caps every deadline granted from then on, and those granted before.
  void LimitLeases(Clock::TimePoint latest);
  void SetLease(Sequence& sequence, std::optional<Clock::Duration> lease, Clock::TimePoint now);
  void RestartLease(Sequence& sequence, Clock::TimePoint now);
  // A sequence whose lease is over and under which no step waits or runs; null: none.
  Sequence* NextExpired(Clock::TimePoint now);
  // When to call NextExpired again at the latest.
  Clock::TimePoint NextLeaseCheck() const;

  LayerRules Rules(const Sequence& sequence, std::int32_t layer) const {
    return RulesOf(*sequence.shape, layer, options_.window_slack_tokens);
  }
  SequenceInfo Describe(const Sequence& sequence, Clock::TimePoint now) const;
  absl::StatusOr<SequenceList> List(const std::string& tenant, std::int32_t page_size,
                                    const std::string& page_token, Clock::TimePoint now) const;

  // Live ones and those that have ended under a running step.
  std::int64_t num_owned() const { return static_cast<std::int64_t>(owned_.size()); }
  bool empty() const { return owned_.empty(); }

 private:
  struct Ending {
    std::string tenant;
    SequenceEnd reason;
  };
  struct LeaseTimer {
    Clock::TimePoint deadline;
    SequenceKey key;
  };
  static bool Later(const LeaseTimer& a, const LeaseTimer& b) { return a.deadline > b.deadline; }

  absl::Status CheckSlots() const;
  absl::Status TakeReserve(Sequence& sequence, std::int64_t reserve_tokens);
  Sequence& Adopt(std::unique_ptr<Sequence> sequence, std::optional<Clock::Duration> lease,
                  Clock::TimePoint now);
  absl::Status NotLive(std::string_view tenant, const SequenceKey& key) const;
  SequenceKey NewKey();
  void PushLeaseTimer(Sequence& sequence, Clock::TimePoint deadline);

  Options options_;
  std::string id_prefix_;  // server key and start key
  absl::flat_hash_map<std::string, std::pair<std::string, std::string>> peers_;  // by server key
  PagePool& pool_;
  HostCache* const host_cache_;
  absl::flat_hash_map<Sequence*, std::unique_ptr<Sequence>> owned_;
  absl::flat_hash_map<SequenceKey, Sequence*> live_;
  absl::flat_hash_map<std::string, absl::btree_set<SequenceKey>> keys_of_tenant_;
  absl::flat_hash_map<std::pair<std::string, std::string>, Creation> creations_;
  absl::flat_hash_map<SequenceKey, Ending> endings_;
  std::deque<SequenceKey> ending_order_;
  std::vector<LeaseTimer> lease_heap_;
  Clock::TimePoint lease_limit_ = Clock::kNever;
  std::vector<std::uint64_t> random_words_;
};

}  // namespace attnd
