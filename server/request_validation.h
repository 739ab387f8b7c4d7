// Parsed Attend and Decode requests -> AttentionRequest, or a status that names the field, what it
// got and what it needs. Everything that can be told without looking at a sequence is checked here,
// so that nothing behind it meets a shape, size, list or value that does not fit.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "server/attention_request.h"
#include "server/attention_wire.h"
#include "server/clock.h"

namespace attnd {

// Sequences of one Attend request.
inline constexpr std::int64_t kMaxAttendSequences = 131'072;
// Positions stay exact in every kernel's arithmetic up to here.
inline constexpr std::int64_t kMaxPosition = std::int64_t{1} << 40;

struct RequestLimits {
  std::int64_t max_tokens = 0;  // of a layer, and of one Attend sequence
  std::int64_t max_steps = 0;
  std::int64_t max_heads = 0;
  std::int64_t max_layers = 0;
  bool allow_comparison = true;

  WireLimits wire() const { return {max_steps, kMaxAttendSequences}; }
};

struct CallTiming {
  Clock::TimePoint received{};
  Clock::TimePoint deadline = Clock::kNever;  // of the call
  // By how much `deadline` may lie after the client's own, which reaches the server rounded up.
  Clock::Duration deadline_rounding{0};
  Clock::Duration default_timeout{0};  // for requests without execution.timeout; 0: none
};

// Both leave tenant and on_done to the caller.
absl::StatusOr<AttentionRequest> ValidateAttend(WireAttendRequest wire, const RequestLimits& limits,
                                                const CallTiming& timing);
absl::StatusOr<AttentionRequest> ValidateDecode(WireDecodeRequest wire, const RequestLimits& limits,
                                                const CallTiming& timing);

}  // namespace attnd
