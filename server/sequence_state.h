// What the server keeps for one sequence: plain state, changed by sequence_store, sequence_pages
// and the scheduler, all under the scheduler's mutex.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "server/batch.h"
#include "server/clock.h"
#include "server/sequence_types.h"

namespace attnd {

struct WorkItem;

// Options of a group of layers; `options` and `rope` point into the values beside them.
struct LayerOptions {
  AttentionOptionValues values;
  std::optional<RopeOptionValues> rope_values;
  ResolvedOptions options;
  kernels::RopeParams rope;
  // Attend-only steps must say where their queries stand.
  bool needs_query_position() const {
    return rope.enabled || options.alibi_slopes != nullptr ||
           options.window_left != kernels::kUnlimitedWindow;
  }
};

// Fixed at creation; shared with forks.
struct SequenceShape {
  std::int32_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  kernels::DataType data_type = kernels::DataType::kFp32, kv_data_type = kernels::DataType::kFp32;
  std::int64_t max_tokens = 0;
  kernels::PageLayout page_layout;
  int page_class = 0;
  std::vector<std::unique_ptr<LayerOptions>> groups;
  std::vector<std::uint16_t> group_of_layer;

  const LayerOptions& options(std::int32_t layer) const {
    return *groups[group_of_layer[static_cast<std::size_t>(layer)]];
  }
};

// How far a layer is. `freed_tokens` (whole pages, from the front) have passed the window.
struct LayerProgress {
  std::int64_t length = 0;
  std::uint64_t epoch = 0;
  std::int64_t freed_tokens = 0;
};

struct LayerState {
  LayerProgress applied;                  // after every step handed to the backend in full
  LayerProgress projected;                // after every admitted step
  std::vector<std::uint32_t> pages;       // of tokens from applied.freed_tokens on
  std::vector<std::uint32_t> host_pages;  // the same while the layer lies in host memory
  std::vector<std::uint32_t> reserve;     // free pages that only this layer may use
  WorkItem* first_waiting = nullptr;      // admitted, not yet handed over in full; in order
  WorkItem* last_waiting = nullptr;
  std::uint64_t last_ticket = 0;  // of the last request that named this layer: finds duplicates
};

using ForkDone = absl::AnyInvocable<void(absl::StatusOr<SequenceGrant>)>;

// Counts down the sequences of one Truncate or Delete call; `done` runs after the last.
struct SequencesCall {
  std::size_t remaining = 0;
  std::vector<std::optional<SequenceFailureValue>> failures;  // one a sequence, in order
  absl::AnyInvocable<void(std::vector<SequenceFailureValue>)> done;
};

struct TruncateOperation {
  std::int64_t num_tokens = 0;
  std::uint64_t epoch = 0;
  std::shared_ptr<SequencesCall> call;
  std::size_t index = 0;
};
struct ForkOperation {
  ForkSequenceSpec spec;
  ForkDone done;
};

// An operation on the whole sequence. It waits for the steps admitted before it; steps admitted
// after it wait for it.
struct Barrier {
  std::optional<TruncateOperation> truncate;  // exactly one of the two
  std::optional<ForkOperation> fork;
  std::int64_t steps_after = 0;  // unfinished ones between this barrier and the next
};

using SequenceKey = std::array<std::uint64_t, 2>;  // the 16 random bytes of the id

struct Sequence {
  SequenceKey key{};
  std::string tenant;
  std::shared_ptr<const SequenceShape> shape;
  std::vector<LayerState> layers;
  std::int64_t reserve_pages = 0;  // per layer: `reserve` and pages held alone are never fewer
  std::string creation_key;

  Clock::Duration lease{0};
  Clock::TimePoint lease_deadline{};
  Clock::TimePoint lease_timer{};  // deadline of this sequence's entry in the lease heap

  // Steps: unfinished = waiting + running. Those of `steps_front` were admitted before the first
  // barrier.
  std::int64_t steps_unfinished = 0, steps_running = 0, steps_front = 0;
  std::vector<Barrier> barriers;
  std::uint64_t barriers_admitted = 0, barriers_done = 0;
  struct Truncated {
    std::uint64_t epoch = 0;
    std::int64_t num_tokens = 0;
  };
  std::optional<Truncated> last_truncate;  // admitted: a repeat of it is answered OK

  std::uint64_t idle_number = 0;  // HostCache's: its place among the idle ones; 0: none

  bool ended = false;  // no longer found by id; freed when steps_running is 0
  std::vector<std::pair<std::shared_ptr<SequencesCall>, std::size_t>> end_waiters;

  LayerState& layer(std::int32_t index) { return layers[static_cast<std::size_t>(index)]; }
};

}  // namespace attnd
