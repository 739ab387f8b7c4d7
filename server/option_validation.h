// Option messages -> checked values, or a status that names the field, what it got and what it
// needs. `field` is the path of the message itself, "options" or "layer_groups[2].options".
#pragma once

#include <google/protobuf/duration.pb.h>

#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attnd/v1/attention.pb.h"
#include "server/attention_request.h"
#include "server/clock.h"

namespace attnd {

absl::StatusOr<AttentionOptionValues> ValidateAttentionOptions(std::string_view field,
                                                               const v1::AttentionOptions& options,
                                                               std::int32_t num_heads);

absl::StatusOr<RopeOptionValues> ValidateRopeOptions(std::string_view field,
                                                     const v1::RopeOptions& options,
                                                     std::int32_t head_dim);

struct ExecutionChoice {
  ExecutionValues values;
  std::optional<Clock::Duration> timeout;
};
// PERMISSION_DENIED for ALGORITHM_NAIVE and `alone` where comparison is not allowed.
absl::StatusOr<ExecutionChoice> ValidateExecution(const v1::ExecutionOptions& options,
                                                  bool allow_comparison);

// > 0; saturates at the longest Clock::Duration (292 years).
absl::StatusOr<Clock::Duration> ValidatePositiveDuration(
    std::string_view field, const google::protobuf::Duration& duration);

}  // namespace attnd
