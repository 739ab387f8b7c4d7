#include "server/option_validation.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/error_status.h"

namespace attnd {
namespace {

constexpr std::int32_t kMaxPriority = 100;

template <typename... Parts>
std::string Path(std::string_view field, const Parts&... parts) {
  return absl::StrCat(absl::string_view(field.data(), field.size()), parts...);
}

template <typename Accept>
absl::Status CheckHeadList(std::string_view field, const char* member,
                           const google::protobuf::RepeatedField<float>& values,
                           std::int32_t num_heads, const char* need, Accept&& accept) {
  if (values.empty()) return absl::OkStatus();
  if (values.size() != num_heads) {
    return InvalidField(Path(field, ".", member), absl::StrCat(values.size(), " values"),
                        absl::StrCat(num_heads, " values (one a query head) or none"));
  }
  for (int i = 0; i < values.size(); ++i) {
    if (!accept(values[i])) {
      return InvalidField(Path(field, ".", member, "[", i, "]"), absl::StrCat(values[i]), need);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckWindow(std::string_view field, const char* member, std::int32_t window) {
  if (window >= 0) return absl::OkStatus();
  return InvalidField(Path(field, ".", member), absl::StrCat(window),
                      ">= 0, or unset for an unlimited window");
}

}  // namespace

absl::StatusOr<AttentionOptionValues> ValidateAttentionOptions(std::string_view field,
                                                               const v1::AttentionOptions& options,
                                                               std::int32_t num_heads) {
  if (options.has_softmax_scale() && !std::isfinite(options.softmax_scale())) {
    return InvalidField(Path(field, ".softmax_scale"), absl::StrCat(options.softmax_scale()),
                        "a finite value");
  }
  if (!std::isfinite(options.logits_soft_cap()) || options.logits_soft_cap() < 0) {
    return InvalidField(Path(field, ".logits_soft_cap"), absl::StrCat(options.logits_soft_cap()),
                        "a finite value >= 0");
  }
  for (const auto& status :
       {CheckWindow(field, "window_left", options.window_left()),
        CheckWindow(field, "window_right", options.window_right()),
        CheckHeadList(field, "alibi_slopes", options.alibi_slopes(), num_heads, "a finite value",
                      [](float slope) { return std::isfinite(slope); }),
        CheckHeadList(field, "sink_logits", options.sink_logits(), num_heads,
                      "a value that is neither NaN nor +Inf",
                      [](float sink) { return sink < INFINITY; })}) {
    if (!status.ok()) return status;
  }
  AttentionOptionValues values;
  if (options.has_softmax_scale()) values.softmax_scale = options.softmax_scale();
  values.causal = options.causal();
  if (options.has_window_left()) values.window_left = options.window_left();
  if (options.has_window_right()) values.window_right = options.window_right();
  values.logits_soft_cap = options.logits_soft_cap();
  values.alibi_slopes.assign(options.alibi_slopes().begin(), options.alibi_slopes().end());
  values.sink_logits.assign(options.sink_logits().begin(), options.sink_logits().end());
  return values;
}

absl::StatusOr<RopeOptionValues> ValidateRopeOptions(std::string_view field,
                                                     const v1::RopeOptions& options,
                                                     std::int32_t head_dim) {
  RopeOptionValues values;
  values.rotary_dim = options.rotary_dim() == 0 ? head_dim : options.rotary_dim();
  if (values.rotary_dim < 0 || values.rotary_dim > head_dim || values.rotary_dim % 2 != 0) {
    return InvalidField(
        Path(field, ".rotary_dim"),
        absl::StrCat(options.rotary_dim(), options.rotary_dim() == 0 ? " (head_dim)" : ""),
        absl::StrCat("an even number up to head_dim ", head_dim));
  }
  const auto& frequencies = options.inverse_frequencies();
  if (!frequencies.empty() && frequencies.size() != values.rotary_dim / 2) {
    return InvalidField(Path(field, ".inverse_frequencies"),
                        absl::StrCat(frequencies.size(), " values"),
                        absl::StrCat(values.rotary_dim / 2, " values (rotary_dim / 2) or none"));
  }
  for (int i = 0; i < frequencies.size(); ++i) {
    if (!std::isfinite(frequencies[i])) {
      return InvalidField(Path(field, ".inverse_frequencies[", i, "]"),
                          absl::StrCat(frequencies[i]), "a finite value");
    }
  }
  if (frequencies.empty() && !(std::isfinite(options.theta()) && options.theta() > 0)) {
    return InvalidField(Path(field, ".theta"), absl::StrCat(options.theta()),
                        "a finite value > 0, or inverse_frequencies");
  }
  if (options.has_position_scale()) values.position_scale = options.position_scale();
  if (!std::isfinite(values.position_scale) || values.position_scale <= 0) {
    return InvalidField(Path(field, ".position_scale"), absl::StrCat(values.position_scale),
                        "a finite value > 0");
  }
  if (options.has_amplitude()) values.amplitude = options.amplitude();
  if (!std::isfinite(values.amplitude)) {
    return InvalidField(Path(field, ".amplitude"), absl::StrCat(values.amplitude),
                        "a finite value");
  }
  values.theta = options.theta();
  values.interleaved = options.interleaved();
  values.inverse_frequencies.assign(frequencies.begin(), frequencies.end());
  return values;
}

absl::StatusOr<ExecutionChoice> ValidateExecution(const v1::ExecutionOptions& options,
                                                  bool allow_comparison) {
  ExecutionChoice choice;
  const bool naive = options.algorithm() == v1::ALGORITHM_NAIVE;
  if ((naive || options.alone()) && !allow_comparison) {
    return ErrorStatus(absl::StatusCode::kPermissionDenied, v1::REASON_COMPARISON_DISABLED,
                       naive ? "execution.algorithm" : "execution.alone",
                       "this server runs with --allow_comparison=false: ALGORITHM_NAIVE and "
                       "`alone` are not available");
  }
  if (options.priority() < -kMaxPriority || options.priority() > kMaxPriority) {
    return InvalidField("execution.priority", absl::StrCat(options.priority()),
                        absl::StrCat(-kMaxPriority, " to ", kMaxPriority));
  }
  if (options.has_timeout()) {
    auto timeout = ValidatePositiveDuration("execution.timeout", options.timeout());
    if (!timeout.ok()) return timeout.status();
    choice.timeout = *timeout;
  }
  choice.values.algorithm = naive ? Algorithm::kNaive : Algorithm::kFused;
  choice.values.alone = options.alone();
  choice.values.priority = options.priority();
  return choice;
}

absl::StatusOr<Clock::Duration> ValidatePositiveDuration(
    std::string_view field, const google::protobuf::Duration& duration) {
  constexpr std::int32_t kNanosPerSecond = 1'000'000'000;
  const bool nanos_valid =
      duration.nanos() > -kNanosPerSecond && duration.nanos() < kNanosPerSecond;
  const bool positive = duration.seconds() >= 0 && duration.nanos() >= 0 &&
                        (duration.seconds() > 0 || duration.nanos() > 0);
  if (!nanos_valid || !positive) {
    return InvalidField(field, absl::StrCat(duration.seconds(), " s + ", duration.nanos(), " ns"),
                        "a duration > 0");
  }
  const std::int64_t max_seconds = Clock::Duration::max().count() / kNanosPerSecond - 1;
  if (duration.seconds() > max_seconds) return Clock::Duration::max();
  return Clock::Duration(duration.seconds() * kNanosPerSecond + duration.nanos());
}

}  // namespace attnd
