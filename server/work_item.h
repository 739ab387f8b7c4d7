// A submitted request inside the scheduler, cut into items: one for each Decode step or Attend
// sequence. Plain state, under the scheduler's mutex.
//
// Life of an item: waiting (for steps of its layer, or a barrier) -> perhaps held back (see
// kMaxPrefillGroups) -> ready (in its group, seen by the policy) -> in flight; a prefill that runs
// in chunks goes back to ready -> finished.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "server/admission.h"
#include "server/attention_request.h"
#include "server/batch.h"
#include "server/batch_policy.h"
#include "server/scheduler.h"
#include "server/sequence_state.h"

namespace attnd {

struct PendingRequest;
struct WorkGroup;

struct WorkItem {
  enum class State : std::uint8_t { kWaiting, kHeldBack, kReady, kInFlight, kFinished };

  PendingRequest* request = nullptr;
  WorkGroup* group = nullptr;
  std::int32_t index = 0;  // of the step or sequence in the request
  State state = State::kWaiting;
  std::int64_t first_row = 0;     // in q (Decode: in k and v too)
  std::int64_t first_kv_row = 0;  // Attend
  std::int32_t num_tokens = 0;
  std::int32_t launched_tokens = 0;
  // Not OK: how the item ended; set early on an item in flight that must not go on.
  absl::Status failure;

  // Decode.
  Sequence* sequence = nullptr;
  std::int32_t layer = 0;
  StepKind kind = StepKind::kAppend;
  StepClaim claim;
  std::uint64_t era = 0;                 // barriers admitted before it
  WorkItem* next_in_layer = nullptr;     // admitted after it, on the same layer
  std::vector<std::uint32_t> provision;  // pages set aside at admission
  std::vector<std::uint32_t> released;   // given back when the launch has ended

  // Attend.
  StagedTensors staged;

  bool launched_whole() const { return launched_tokens == num_tokens; }
};

// Ready items of one request that may share a launch; the policy sees a group as one QueueEntry.
// Prefill items have a group each, and only kMaxPrefillGroups of a request are queued at a time, so
// that a request of a hundred thousand sequences does not make every decision slow.
struct WorkGroup {
  static constexpr std::size_t kNotQueued = SIZE_MAX;
  PendingRequest* request = nullptr;
  std::uint32_t shape_class = 0;
  QueueClass queue_class = QueueClass::kDecode;
  std::size_t entry = kNotQueued;  // in the ready queue
  absl::InlinedVector<WorkItem*, 1> ready;
  std::size_t head = 0;  // items before it have been taken

  std::size_t size() const { return ready.size() - head; }
  WorkItem& front() const { return *ready[head]; }
};
inline constexpr std::size_t kMaxPrefillGroups = 64;

struct PendingRequest {
  Ticket ticket = 0;
  AttentionRequest request;
  ResolvedOptions attend_options;  // Attend; points into request.options
  std::vector<WorkItem> items;
  absl::InlinedVector<std::unique_ptr<WorkGroup>, 1> groups;
  std::uint32_t tenant = 0;
  std::uint64_t order = 0;
  Clock::TimePoint admitted{};
  std::int64_t num_rows = 0;

  std::size_t items_unfinished = 0;
  std::size_t items_waiting = 0;  // not yet handed over in full
  std::size_t items_in_flight = 0;
  bool launched = false;
  std::uint64_t last_batch = 0;
  std::size_t prefill_queued = 0;    // ready prefill items, at most kMaxPrefillGroups
  std::vector<WorkItem*> held_back;  // in order, from next_held_back on; finished ones are skipped
  std::size_t next_held_back = 0;
  RequestOutputs outputs;
  AttentionResult result;
};

}  // namespace attnd
