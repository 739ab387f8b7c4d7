#include "client/attnctl/command.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace attnd::client::attnctl {

using Json = nlohmann::json;

ClientOptions Session::MakeClientOptions() const {
  ClientOptions options;
  options.transport.target = server;
  if (!tenant.empty()) options.transport.metadata.emplace_back("attnd-tenant", tenant);
  if (!route.empty()) options.transport.metadata.emplace_back("attnd-route", route);
  if (!token.empty()) options.transport.metadata.emplace_back("authorization", "Bearer " + token);
  return options;
}

CallOptions Session::call() const {
  const std::chrono::duration<double> timeout(std::min(timeout_seconds, kLongestTimeoutSeconds));
  return {.timeout = std::chrono::duration_cast<Duration>(timeout)};
}

void PrintJson(const Json& value) {
  std::printf("%s\n", value.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

Json ErrorJson(const absl::Status& status) {
  const CallError error = DescribeError(status);
  Json json = {{"code", absl::StatusCodeToString(error.code)}, {"message", error.message}};
  if (error.reason != v1::REASON_UNSPECIFIED) json["detail"] = MessageJson(error.detail);
  return json;
}

int Fail(const Session& session, const absl::Status& status) {
  std::fprintf(stderr, "attnctl: %s\n", ErrorText(status).c_str());
  if (session.json) PrintJson({{"error", ErrorJson(status)}});
  const bool unreachable = status.code() == absl::StatusCode::kUnavailable ||
                           status.code() == absl::StatusCode::kDeadlineExceeded;
  return unreachable ? kExitNoServer : kExitRefused;
}

int FailUsage(const Session& session, const absl::Status& status) {
  Fail(session, status);
  return kExitUsage;
}

Json MessageJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) return Json();
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

std::string HexFromId(const std::string& sequence_id) {
  return absl::BytesToHexString(sequence_id);
}

absl::StatusOr<std::string> IdFromHex(const std::string& hex) {
  const bool digits = hex.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
  if (!digits || hex.size() % 2 != 0 || hex.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence id: got '", hex, "', need hexadecimal digits, two a byte"));
  }
  return absl::HexStringToBytes(hex);
}

void SetDuration(double seconds, google::protobuf::Duration& duration) {
  // The longest that the message may hold; the server cuts it to what it allows.
  constexpr double kLongest = 315'576'000'000;
  seconds = std::min(seconds, kLongest);
  const double whole = std::floor(seconds);
  duration.set_seconds(static_cast<std::int64_t>(whole));
  duration.set_nanos(static_cast<std::int32_t>((seconds - whole) * 1e9));
}

double SecondsOf(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) + duration.nanos() * 1e-9;
}

}  // namespace attnd::client::attnctl
