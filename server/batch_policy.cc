#include "server/batch_policy.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "absl/container/inlined_vector.h"

namespace attnd {
namespace {

// A waiting entry with its place in the fair order.
struct Ranked {
  std::size_t entry = 0;
  double tag = 0;  // work its tenant has used when its turn comes
  Clock::TimePoint due{};
};

// One waiting entry is the common case of an unloaded server: it costs no allocation.
using RankedList = absl::InlinedVector<Ranked, 4>;

Clock::TimePoint DueTime(const QueueEntry& entry) {
  return std::min(entry.deadline, entry.admitted + kNoDeadlineHorizon);
}

auto OrderKey(const QueueEntry& entry, const Ranked& ranked) {
  return std::make_tuple(-entry.priority, ranked.tag, ranked.due, entry.order);
}

// When decodes have had their share of the time since the last prefill launch.
Clock::TimePoint PrefillTurn(const BatchPolicyConfig& config, const DeviceTurns& turns) {
  const double decode_per_prefill = config.decode_share / (1 - config.decode_share);
  return turns.prefill_ended +
         std::chrono::duration_cast<Clock::Duration>(turns.prefill_time * decode_per_prefill);
}

// Until when prefill leaves the device to decodes: for their share, unless they stop coming.
Clock::TimePoint PrefillHeldUntil(const BatchPolicyConfig& config, const QueueView& view) {
  const Clock::TimePoint turn = PrefillTurn(config, view.turns);
  const bool decodes_run = view.batches_in_flight > view.prefill_batches_in_flight;
  const bool decodes_wait =
      std::any_of(view.entries.begin(), view.entries.end(),
                  [](const QueueEntry& entry) { return entry.queue_class == QueueClass::kDecode; });
  if (decodes_run || decodes_wait) return turn;
  return std::min(turn, view.turns.decode_ended + config.decode_gap);
}

// Urgent prefill is not held back for decodes that are less so.
bool IsHeldBack(const QueueView& view, const QueueEntry& entry) {
  return entry.queue_class == QueueClass::kPrefill && entry.priority <= view.turns.decode_priority;
}

bool MayLaunch(const QueueView& view, const QueueEntry& entry, bool prefill_held) {
  if (entry.queue_class == QueueClass::kDecode) return true;
  return view.prefill_batches_in_flight == 0 && !(prefill_held && IsHeldBack(view, entry));
}

// Start tags of fair queueing: each tenant's entries, earliest due first, follow one another at a
// distance of their work.
void TagByTenant(const QueueView& view, RankedList& ranked) {
  const bool one_tenant = std::all_of(ranked.begin(), ranked.end(), [&](const Ranked& r) {
    return view.entries[r.entry].tenant == view.entries[ranked.front().entry].tenant;
  });
  if (one_tenant) return;
  std::sort(ranked.begin(), ranked.end(), [&](const Ranked& a, const Ranked& b) {
    return OrderKey(view.entries[a.entry], a) < OrderKey(view.entries[b.entry], b);
  });
  std::vector<double> used(view.tenant_used.begin(), view.tenant_used.end());
  for (Ranked& r : ranked) {
    const QueueEntry& entry = view.entries[r.entry];
    r.tag = used[entry.tenant];
    used[entry.tenant] += entry.work;
  }
}

// Whether `a` decides the launch rather than `b`.
bool Leads(const QueueView& view, bool prefill_turn, const Ranked& a, const Ranked& b) {
  const QueueEntry& left = view.entries[a.entry];
  const QueueEntry& right = view.entries[b.entry];
  if (left.priority != right.priority) return left.priority > right.priority;
  if (left.queue_class != right.queue_class) {
    return (left.queue_class == QueueClass::kPrefill) == prefill_turn;
  }
  return OrderKey(left, a) < OrderKey(right, b);
}

// Whether `entry` may share the launch that `first` leads.
bool MayJoin(const QueueEntry& first, const QueueEntry& entry) {
  return entry.shape_class == first.shape_class && entry.queue_class == first.queue_class &&
         !entry.alone;
}

BatchDecision TakeAlone(const BatchPolicyConfig& config, const QueueEntry& entry, std::size_t index,
                        double work_budget) {
  std::int32_t tokens = entry.prefill.tokens;
  if (entry.queue_class == QueueClass::kPrefill && entry.prefill.divisible) {
    tokens = TokensWithin(entry.prefill, work_budget);
  }
  BatchDecision decision;
  decision.kind = BatchDecision::Kind::kDispatch;
  decision.closed = BatchClosed::kAlone;
  decision.takes.push_back({index, std::min(entry.sequences, config.max_batch_sequences), tokens});
  return decision;
}

class BatchBuilder {
 public:
  BatchBuilder(const BatchPolicyConfig& config, double work_budget)
      : config_(config), work_budget_(work_budget) {}

  // False when the batch is closed.
  bool Add(const QueueEntry& entry, std::size_t index) {
    if (entry.queue_class == QueueClass::kPrefill) return AddPrefill(entry, index);
    const std::int32_t room = config_.max_batch_sequences - sequences_;
    const std::int64_t tokens_left = config_.max_batch_tokens - tokens_;
    // Where not all of them fit, the front ones may be the large ones.
    const std::int64_t fitting = entry.tokens <= tokens_left
                                     ? entry.sequences
                                     : tokens_left / std::max<std::int64_t>(1, entry.most_tokens);
    std::int64_t count = std::min<std::int64_t>({entry.sequences, room, fitting});
    if (count <= 0 && sequences_ == 0) count = 1;
    if (count > 0) {
      decision_.takes.push_back({index, static_cast<std::int32_t>(count), 0});
      sequences_ += static_cast<std::int32_t>(count);
      tokens_ += std::min(entry.tokens, count * entry.most_tokens);
    }
    if (count < entry.sequences) {
      decision_.closed = room <= count ? BatchClosed::kSequences : BatchClosed::kTokens;
      return false;
    }
    return true;
  }

  BatchDecision Finish() {
    decision_.kind = BatchDecision::Kind::kDispatch;
    return std::move(decision_);
  }

 private:
  bool AddPrefill(const QueueEntry& entry, std::size_t index) {
    if (sequences_ >= config_.max_batch_sequences) return Close(BatchClosed::kSequences);
    const std::int64_t room = config_.max_batch_tokens - tokens_;
    if (room <= 0) return Close(BatchClosed::kTokens);
    std::int32_t tokens = entry.prefill.tokens;
    if (entry.prefill.divisible) {
      tokens = static_cast<std::int32_t>(std::min<std::int64_t>(tokens, room));
      const double left = work_budget_ - work_;
      if (left <= 0 && sequences_ > 0) return Close(BatchClosed::kChunk);
      tokens = std::min(tokens, TokensWithin(entry.prefill, left));
    } else if (sequences_ > 0 && tokens > room) {
      return Close(BatchClosed::kTokens);
    }
    decision_.takes.push_back({index, 1, tokens});
    ++sequences_;
    tokens_ += tokens;
    work_ += WorkOf(entry.prefill, tokens);
    if (tokens < entry.prefill.tokens) {
      return Close(room <= tokens ? BatchClosed::kTokens : BatchClosed::kChunk);
    }
    return true;
  }

  bool Close(BatchClosed reason) {
    decision_.closed = reason;
    return false;
  }

  const BatchPolicyConfig& config_;
  double work_budget_;
  BatchDecision decision_;
  std::int32_t sequences_ = 0;
  std::int64_t tokens_ = 0;
  double work_ = 0;
};

// When a class whose members are `joining` should be launched: at once if it fills a batch, else
// max_queue_delay after its oldest member came.
Clock::TimePoint LaunchTime(const BatchPolicyConfig& config, const QueueView& view,
                            const RankedList& joining) {
  std::int64_t sequences = 0, tokens = 0;
  Clock::TimePoint oldest = Clock::kNever;
  for (const Ranked& r : joining) {
    const QueueEntry& entry = view.entries[r.entry];
    sequences += entry.sequences;
    tokens += entry.tokens;
    oldest = std::min(oldest, entry.admitted);
  }
  const bool full = sequences >= config.max_batch_sequences || tokens >= config.max_batch_tokens;
  return full ? oldest : oldest + config.max_queue_delay;
}

BatchDecision TakeTogether(const BatchPolicyConfig& config, const QueueView& view,
                           double work_budget, RankedList& joining, bool others_wait) {
  std::sort(joining.begin(), joining.end(), [&](const Ranked& a, const Ranked& b) {
    return OrderKey(view.entries[a.entry], a) < OrderKey(view.entries[b.entry], b);
  });
  BatchBuilder builder(config, work_budget);
  bool open = true;
  for (const Ranked& r : joining) {
    open = builder.Add(view.entries[r.entry], r.entry);
    if (!open) break;
  }
  BatchDecision decision = builder.Finish();
  if (open && others_wait) decision.closed = BatchClosed::kShape;
  return decision;
}

}  // namespace

double WorkOf(const PrefillWork& prefill, std::int32_t tokens) {
  const double rows = tokens;
  double keys = 0;
  if (!prefill.causal) {
    keys = rows * static_cast<double>(std::min(prefill.first_visible, prefill.max_visible));
  } else {
    // Rows grow by one key each until they reach max_visible.
    const double first = static_cast<double>(std::min(prefill.first_visible, prefill.max_visible));
    const double growing = std::min(rows, static_cast<double>(prefill.max_visible) - first);
    keys = growing * first + growing * (growing - 1) / 2 +
           (rows - growing) * static_cast<double>(prefill.max_visible);
  }
  return keys * prefill.work_per_key + rows * prefill.work_per_row;
}

std::int32_t TokensWithin(const PrefillWork& prefill, double budget) {
  if (WorkOf(prefill, prefill.tokens) <= budget) return prefill.tokens;
  std::int32_t low = 1, high = prefill.tokens;
  while (low < high) {
    const std::int32_t middle = low + (high - low + 1) / 2;
    if (WorkOf(prefill, middle) <= budget) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  // Query tiles are 64 rows (16 in small ones): a chunk that ends inside one wastes the rest.
  if (low >= 64) return low / 64 * 64;
  if (low >= 16) return low / 16 * 16;
  return low;
}

BatchDecision DecideBatch(const BatchPolicyConfig& config, const QueueView& view,
                          Clock::TimePoint now) {
  BatchDecision decision;
  if (view.entries.empty() || view.batches_in_flight >= config.max_batches_in_flight) {
    return decision;
  }
  const Clock::TimePoint held_until = PrefillHeldUntil(config, view);
  const bool prefill_held = now < held_until;
  RankedList ranked;
  ranked.reserve(view.entries.size());
  for (std::size_t i = 0; i < view.entries.size(); ++i) {
    const QueueEntry& entry = view.entries[i];
    if (MayLaunch(view, entry, prefill_held)) {
      ranked.push_back({i, 0, DueTime(entry)});
    } else if (view.prefill_batches_in_flight == 0) {
      decision.kind = BatchDecision::Kind::kWait;  // unless something else may go
      decision.wait_until = held_until;
    }
  }
  if (ranked.empty()) return decision;
  TagByTenant(view, ranked);

  const bool prefill_turn =
      view.turns.decode_since_prefill && now >= PrefillTurn(config, view.turns);
  const double chunk_seconds = std::chrono::duration<double>(config.prefill_chunk_time).count();
  while (!ranked.empty()) {
    const Ranked leader = *std::min_element(
        ranked.begin(), ranked.end(),
        [&](const Ranked& a, const Ranked& b) { return Leads(view, prefill_turn, a, b); });
    const QueueEntry& first = view.entries[leader.entry];
    const double budget = view.work_per_second[first.shape_class] * chunk_seconds;
    if (first.alone) return TakeAlone(config, first, leader.entry, budget);

    const auto split = std::partition(ranked.begin(), ranked.end(), [&](const Ranked& r) {
      return MayJoin(first, view.entries[r.entry]);
    });
    RankedList joining(ranked.begin(), split);
    const Clock::TimePoint launch_time = LaunchTime(config, view, joining);
    if (launch_time <= now) {
      return TakeTogether(config, view, budget, joining, /*others_wait=*/split != ranked.end());
    }
    decision.kind = BatchDecision::Kind::kWait;  // unless another class is due
    decision.wait_until = std::min(decision.wait_until, launch_time);
    ranked.erase(ranked.begin(), split);
  }
  return decision;
}

}  // namespace attnd
