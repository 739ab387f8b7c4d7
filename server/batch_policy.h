// What to launch next: a pure function of (config, queue view, now). No lock, no thread, no clock.
//
// Order of the waiting work:
//   1. higher priority first (negative ones may wait for ever behind normal ones);
//   2. decode before prefill, except that prefill gets a launch once decodes have had their share
//      of the time since its last one ended;
//   3. fair between tenants: the one that has used least comes first;
//   4. earliest deadline first; work without a deadline counts as due kNoDeadlineHorizon after it
//      came, so that it cannot starve behind short deadlines;
//   5. order of arrival.
// The first one decides the shape class of the launch; whatever else of that class waits joins it,
// in the same order, up to the limits. Prefill is cut so that a launch takes about
// prefill_chunk_time by the rate measured for its class, and at most one prefill launch is in
// flight: a decode never waits behind more than that. After a prefill launch the device belongs to
// decodes for as long as decode_share of the two together, while they keep coming: a generation
// sends its next step only when it has the last one's answer, so prefill waits up to decode_gap for
// it. No launch has more than max_batch_tokens: admission refuses work that cannot be cut and has
// more by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "server/clock.h"
#include "server/metrics.h"

namespace attnd {

struct BatchPolicyConfig {
  int max_batch_sequences = 1;
  std::int64_t max_batch_tokens = 1;
  Clock::Duration max_queue_delay{0};
  Clock::Duration prefill_chunk_time{0};
  double decode_share = 0;        // of the time, while decodes keep coming; below 1
  Clock::Duration decode_gap{0};  // without a decode for longer, none is expected
  int max_batches_in_flight = 2;
};

inline constexpr Clock::Duration kNoDeadlineHorizon = std::chrono::seconds(60);

// Query rows that remain of one prefill item; what a row costs follows from what it sees.
struct PrefillWork {
  std::int32_t tokens = 0;
  std::int64_t first_visible = 0;  // keys that the first row sees
  std::int64_t max_visible = 0;    // no row sees more (window, end of the keys)
  bool causal = true;              // row i sees first_visible + i keys; otherwise all first_visible
  double work_per_key = 0;         // work of one (row, key) pair
  double work_per_row = 0;         // copying and appending
  bool divisible = true;           // naive is launched whole
};
// Work of the first `tokens` rows, in the unit of work_per_key (multiply-adds).
double WorkOf(const PrefillWork& prefill, std::int32_t tokens);
// The most rows whose work is within `budget`; at least 1, rounded down to what tiles like.
std::int32_t TokensWithin(const PrefillWork& prefill, double budget);

// Work that may be launched now: of one request and one shape class.
struct QueueEntry {
  std::uint32_t shape_class = 0;
  QueueClass queue_class = QueueClass::kDecode;
  bool alone = false;
  std::int32_t priority = 0;
  std::uint32_t tenant = 0;  // index into QueueView::tenant_used
  Clock::TimePoint deadline = Clock::kNever, admitted{};
  std::uint64_t order = 0;       // of arrival
  std::int32_t sequences = 0;    // decode: taken one by one from the front; prefill: 1
  std::int64_t tokens = 0;       // query (or appended) tokens of all of them
  std::int64_t most_tokens = 0;  // of the largest one
  double work = 0;
  PrefillWork prefill;    // prefill only
  void* owner = nullptr;  // the scheduler's
};

// Who has had the device.
struct DeviceTurns {
  Clock::TimePoint prefill_ended{};   // the last prefill launch
  Clock::Duration prefill_time{0};    // how long it had the device
  Clock::TimePoint decode_ended{};    // the last decode launch
  std::int32_t decode_priority = 0;   // of the decodes launched last
  bool decode_since_prefill = false;  // launched
};

struct QueueView {
  absl::Span<const QueueEntry> entries;
  absl::Span<const double> tenant_used;      // by tenant, in work
  absl::Span<const double> work_per_second;  // by shape class: measured, or an estimate
  int batches_in_flight = 0, prefill_batches_in_flight = 0;
  DeviceTurns turns;
};

struct BatchDecision {
  enum class Kind : std::uint8_t { kNothing, kWait, kDispatch };
  struct Take {
    std::size_t entry = 0;
    std::int32_t sequences = 0;       // from the entry's front
    std::int32_t prefill_tokens = 0;  // of its one prefill item
  };
  Kind kind = Kind::kNothing;
  Clock::TimePoint wait_until = Clock::kNever;  // kWait
  std::vector<Take> takes;                      // kDispatch: best first
  BatchClosed closed = BatchClosed::kQueueEmpty;
};

BatchDecision DecideBatch(const BatchPolicyConfig& config, const QueueView& view,
                          Clock::TimePoint now);

}  // namespace attnd
