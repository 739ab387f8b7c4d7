#include "server/admission.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "server/error_status.h"

namespace attnd {
namespace {

absl::Status PositionStatus(const LayerProgress& progress, const StepClaim& claim) {
  return LayerStatus(absl::StatusCode::kFailedPrecondition, v1::REASON_POSITION, "position",
                     progress,
                     absl::StrCat("position ", claim.position, " with ", claim.num_tokens,
                                  " tokens in epoch ", claim.epoch, " does not fit a layer of ",
                                  progress.length, " tokens in epoch ", progress.epoch));
}

absl::Status WindowPassedStatus(const LayerProgress& progress, std::int64_t needed) {
  return LayerStatus(absl::StatusCode::kFailedPrecondition, v1::REASON_WINDOW_PASSED, "position",
                     progress,
                     absl::StrCat("needs keys from token ", needed,
                                  " on, but the layer's window "
                                  "has freed those below ",
                                  progress.freed_tokens));
}

// First key that a query at `position` may see.
std::int64_t FirstVisible(const LayerRules& rules, std::int64_t position) {
  if (rules.window_left == kernels::kUnlimitedWindow) return 0;
  return std::max<std::int64_t>(0, position - rules.window_left);
}

StepVerdict JudgeAttendOnly(const LayerRules& rules, const LayerProgress& progress,
                            const StepClaim& claim) {
  if (rules.needs_query_position && !claim.query_position) {
    return {InvalidField("query_position", "unset",
                         "a position: the layer has RoPE, ALiBi or a window"),
            StepKind::kAttendOnly};
  }
  if (claim.position > progress.length) {
    return {PositionStatus(progress, claim), StepKind::kAttendOnly};
  }
  const std::int64_t needed = FirstVisible(rules, claim.query_position.value_or(claim.position));
  if (needed < std::min(progress.freed_tokens, claim.position)) {
    return {WindowPassedStatus(progress, needed), StepKind::kAttendOnly};
  }
  return {absl::OkStatus(), StepKind::kAttendOnly};
}

}  // namespace

LayerRules RulesOf(const SequenceShape& shape, std::int32_t layer,
                   std::int64_t window_slack_tokens) {
  const LayerOptions& options = shape.options(layer);
  LayerRules rules;
  rules.max_tokens = shape.max_tokens;
  rules.window_left = options.options.window_left;
  rules.window_slack_tokens = window_slack_tokens;
  rules.page_tokens = shape.page_layout.page_tokens;
  rules.needs_query_position = options.needs_query_position();
  return rules;
}

StepVerdict JudgeStep(const LayerRules& rules, const LayerProgress& progress,
                      const StepClaim& claim) {
  if (claim.epoch < progress.epoch) {
    return {LayerStatus(absl::StatusCode::kFailedPrecondition, v1::REASON_STALE_EPOCH, "epoch",
                        progress,
                        absl::StrCat("epoch ", claim.epoch, " is over: the layer is in epoch ",
                                     progress.epoch)),
            claim.has_kv ? StepKind::kAppend : StepKind::kAttendOnly};
  }
  if (!claim.has_kv) return JudgeAttendOnly(rules, progress, claim);

  // Written so that no sum of client values can overflow.
  if (claim.position > rules.max_tokens - claim.num_tokens) {
    return {LayerStatus(absl::StatusCode::kOutOfRange, v1::REASON_LIMIT, "position", progress,
                        absl::StrCat("position ", claim.position, " with ", claim.num_tokens,
                                     " tokens passes max_tokens ", rules.max_tokens)),
            StepKind::kAppend};
  }
  StepKind kind = StepKind::kAppend;
  if (claim.epoch > progress.epoch) {
    if (claim.position > progress.length) return {PositionStatus(progress, claim), kind};
  } else if (claim.position != progress.length) {
    if (claim.position + claim.num_tokens > progress.length) {
      return {PositionStatus(progress, claim), kind};
    }
    kind = StepKind::kRepeat;
  }
  if (kind == StepKind::kRepeat && !claim.has_q) return {absl::OkStatus(), kind};
  const std::int64_t needed = FirstVisible(rules, claim.position);
  if (needed < progress.freed_tokens) return {WindowPassedStatus(progress, needed), kind};
  return {absl::OkStatus(), kind};
}

LayerProgress AfterStep(const LayerRules& rules, const LayerProgress& progress,
                        const StepClaim& claim, StepKind kind) {
  if (kind != StepKind::kAppend) return progress;
  LayerProgress after;
  after.length = claim.position + claim.num_tokens;
  after.epoch = claim.epoch;
  after.freed_tokens = std::max(progress.freed_tokens, PassedTokens(rules, after.length));
  return after;
}

LayerProgress AfterTruncate(const LayerProgress& progress, std::int64_t num_tokens,
                            std::uint64_t epoch) {
  LayerProgress after = progress;
  after.length = std::min(progress.length, num_tokens);
  after.epoch = epoch;
  return after;
}

std::int64_t PassedTokens(const LayerRules& rules, std::int64_t length) {
  if (rules.window_left == kernels::kUnlimitedWindow) return 0;
  const std::int64_t passed =
      std::max<std::int64_t>(0, length - rules.window_left - rules.window_slack_tokens);
  return passed / rules.page_tokens * rules.page_tokens;
}

bool CanContinueFrom(const LayerRules& rules, const LayerProgress& progress, std::int64_t length) {
  if (length >= progress.length) return true;
  return FirstVisible(rules, length) >= progress.freed_tokens;
}

absl::Status LayerStatus(absl::StatusCode code, v1::Reason reason, std::string_view field,
                         const LayerProgress& progress, std::string_view message) {
  v1::ErrorDetail detail;
  detail.set_reason(reason);
  detail.set_field(field.data(), field.size());
  detail.set_step_index(-1);
  detail.set_cached_tokens(progress.length);
  detail.set_epoch(progress.epoch);
  return ErrorStatus(code, detail, message);
}

absl::Status AtStep(const absl::Status& status, std::int32_t step_index) {
  v1::ErrorDetail detail = ErrorDetailOf(status);
  if (detail.step_index() >= 0) return status;
  detail.set_step_index(step_index);
  detail.set_field(detail.field().empty()
                       ? absl::StrCat("steps[", step_index, "]")
                       : absl::StrCat("steps[", step_index, "].", detail.field()));
  return ErrorStatus(status.code(), detail,
                     absl::StrCat("steps[", step_index, "]: ", status.message()));
}

absl::Status WithRetryDelay(const absl::Status& status, Clock::Duration delay) {
  v1::ErrorDetail detail = ErrorDetailOf(status);
  const std::int64_t nanoseconds = std::chrono::nanoseconds(delay).count();
  constexpr std::int64_t kNanosecondsPerSecond = 1'000'000'000;
  detail.mutable_retry_delay()->set_seconds(nanoseconds / kNanosecondsPerSecond);
  detail.mutable_retry_delay()->set_nanos(
      static_cast<std::int32_t>(nanoseconds % kNanosecondsPerSecond));
  return ErrorStatus(status.code(), detail, std::string(status.message()));
}

}  // namespace attnd
