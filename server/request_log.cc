#include "server/request_log.h"

#include <algorithm>
#include <optional>

#include "absl/status/status.h"

namespace attnd {
namespace {

LogLevel LevelOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:  // logged for being slow
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
      return LogLevel::kWarn;
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDataLoss:
      return LogLevel::kError;
    case absl::StatusCode::kCancelled:
      return LogLevel::kDebug;
    default:
      return LogLevel::kInfo;
  }
}

}  // namespace

void RequestLog::OnAnswer(const AnsweredRequest& request) {
  const bool slow = slow_ > Clock::Duration::zero() && request.duration > slow_;
  if (request.code == 0 && !slow) return;
  const int code = request.code >= 0 && request.code < static_cast<int>(kNumCodes)
                       ? request.code
                       : static_cast<int>(absl::StatusCode::kUnknown);
  const auto status_code = static_cast<absl::StatusCode>(code);
  const LogLevel level =
      slow ? std::max(LogLevel::kWarn, LevelOf(status_code)) : LevelOf(status_code);
  if (!LogEnabled(level)) return;
  LogGate& gate = gates_[std::min(static_cast<std::size_t>(request.method), kNumMethods - 1)]
                        [static_cast<std::size_t>(code)];
  const std::optional<std::int64_t> held_back = gate.Admit(clock_.Now());
  if (!held_back) return;
  Log(level, request.code == 0 ? "slow request" : "request failed",
      {{"method", MethodName(request.method)},
       {"code", absl::StatusCodeToString(status_code)},
       {"duration_seconds", request.duration},
       {"error", request.error},
       {"traceparent", IsValidTraceparent(request.traceparent) ? request.traceparent : ""},
       {"similar_not_logged", *held_back}});
}

bool IsValidTraceparent(std::string_view text) {
  // 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
  constexpr std::size_t kLength = 55;
  if (text.size() != kLength || text[2] != '-' || text[35] != '-' || text[52] != '-') return false;
  const auto is_hex = [](std::string_view part) {
    return part.find_first_not_of("0123456789abcdef") == std::string_view::npos;
  };
  const auto is_zero = [](std::string_view part) {
    return part.find_first_not_of('0') == std::string_view::npos;
  };
  const std::string_view version = text.substr(0, 2);
  const std::string_view trace_id = text.substr(3, 32);
  const std::string_view parent_id = text.substr(36, 16);
  return is_hex(version) && version != "ff" && is_hex(trace_id) && !is_zero(trace_id) &&
         is_hex(parent_id) && !is_zero(parent_id) && is_hex(text.substr(53));
}

}  // namespace attnd
