// Admission rules of Decode steps: pure functions of a layer's progress. The same function judges a
// step when it arrives and again when a step before it did not run.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "attnd/v1/attention.pb.h"
#include "server/clock.h"
#include "server/sequence_state.h"

namespace attnd {

enum class StepKind : std::uint8_t {
  kAppend,      // appends (after a cut where the epoch is larger), then attends
  kRepeat,      // already cached: nothing is appended
  kAttendOnly,  // came without k and v
};

// What a layer allows.
struct LayerRules {
  std::int64_t max_tokens = 0;
  std::int64_t window_left = kernels::kUnlimitedWindow;
  std::int64_t window_slack_tokens = 0;
  std::int32_t page_tokens = 1;
  bool needs_query_position = false;
};
LayerRules RulesOf(const SequenceShape& shape, std::int32_t layer,
                   std::int64_t window_slack_tokens);

// A step without its tensors.
struct StepClaim {
  std::int64_t position = 0;
  std::int32_t num_tokens = 0;
  std::uint64_t epoch = 0;
  std::optional<std::int64_t> query_position;
  bool has_kv = true, has_q = true;
};

struct StepVerdict {
  absl::Status status;  // not OK: the step cannot run; its detail has no step index yet
  StepKind kind = StepKind::kAppend;
};
// Judges `claim` on a layer that is at `progress`. Does not look at pages.
StepVerdict JudgeStep(const LayerRules& rules, const LayerProgress& progress,
                      const StepClaim& claim);

// Progress after a step that JudgeStep accepted as `kind`.
LayerProgress AfterStep(const LayerRules& rules, const LayerProgress& progress,
                        const StepClaim& claim, StepKind kind);
// Progress after a truncation to `num_tokens` with a larger epoch.
LayerProgress AfterTruncate(const LayerProgress& progress, std::int64_t num_tokens,
                            std::uint64_t epoch);

// Tokens (whole pages) that a layer of `length` no longer keeps; 0 without a window.
std::int64_t PassedTokens(const LayerRules& rules, std::int64_t length);
// Whether the layer can go on from `length` (its next query would need freed keys otherwise).
bool CanContinueFrom(const LayerRules& rules, const LayerProgress& progress, std::int64_t length);

// An error that tells where the layer is: its length and epoch.
absl::Status LayerStatus(absl::StatusCode code, v1::Reason reason, std::string_view field,
                         const LayerProgress& progress, std::string_view message);

// The same status with steps[index] as its place, unless it names one already.
absl::Status AtStep(const absl::Status& status, std::int32_t step_index);
// The same status with a retry delay.
absl::Status WithRetryDelay(const absl::Status& status, Clock::Duration delay);

}  // namespace attnd
