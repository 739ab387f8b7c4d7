#include "client/call_error.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace attnd::client {
namespace {
constexpr absl::string_view kDetailUrl = "type.googleapis.com/attnd.v1.ErrorDetail";
constexpr std::string_view kReasonPrefix = "REASON_";
}  // namespace

std::optional<v1::ErrorDetail> DetailOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kDetailUrl);
  if (!payload.has_value()) return std::nullopt;
  v1::ErrorDetail detail;
  if (!detail.ParseFromString(std::string(*payload))) return std::nullopt;
  return detail;
}

CallError DescribeError(const absl::Status& status) {
  CallError error;
  error.code = status.code();
  error.message = std::string(status.message());
  if (std::optional<v1::ErrorDetail> detail = DetailOf(status)) {
    error.reason = detail->reason();
    error.detail = *std::move(detail);
  } else {
    error.detail.set_step_index(-1);
  }
  return error;
}

std::string ErrorName(const absl::Status& status) {
  const v1::Reason reason = DescribeError(status).reason;
  std::string name = absl::StatusCodeToString(status.code());
  if (reason == v1::REASON_UNSPECIFIED) return name;
  const std::string full = v1::Reason_Name(reason);
  // A reason that this build does not know has no name.
  const std::string known = full.substr(std::min(full.size(), kReasonPrefix.size()));
  return absl::StrCat(name, "/", full.empty() ? std::to_string(reason) : known);
}

std::string ErrorText(const absl::Status& status) {
  return absl::StrCat(ErrorName(status), ": ", status.message());
}

absl::Status StatusWithDetail(absl::StatusCode code, const v1::ErrorDetail& detail,
                              const std::string& message) {
  absl::Status status(code, message);
  status.SetPayload(kDetailUrl, absl::Cord(detail.SerializeAsString()));
  return status;
}

absl::Status StatusFromProto(const v1::Status& status) {
  const auto code = static_cast<absl::StatusCode>(status.code());
  if (!status.has_detail()) return {code, status.message()};
  return StatusWithDetail(code, status.detail(), status.message());
}

}  // namespace attnd::client
