// Decides which answered requests are worth a log line, and writes it.
#pragma once

#include <array>
#include <string_view>

#include "server/clock.h"
#include "server/logging.h"
#include "server/metrics.h"

namespace attnd {

struct AnsweredRequest {
  Method method = Method::kAttend;
  int code = 0;  // gRPC status code
  Clock::Duration duration{0};
  std::string_view error;        // the status message; empty for OK
  std::string_view traceparent;  // as received; left out of the line unless it is a valid one
};

// A failed request is logged at the level of whose fault it is (the server's: error; load: warn;
// the client's: info; a cancel: debug), a slow one at warn: at most one line a second for each
// method and code, with the number of those left out. Thread-safe; no lock before a line is
// written.
class RequestLog {
 public:
  // `slow`: requests that take longer are slow; 0: none is.
  RequestLog(const Clock& clock, Clock::Duration slow) : clock_(clock), slow_(slow) {}

  void OnAnswer(const AnsweredRequest& request);

 private:
  static constexpr std::size_t kNumMethods = static_cast<std::size_t>(Method::kGetServerInfo) + 1;
  static constexpr std::size_t kNumCodes = 17;

  const Clock& clock_;
  const Clock::Duration slow_;
  std::array<std::array<LogGate, kNumCodes>, kNumMethods> gates_;
};

// W3C trace context: version, trace id, parent id and flags in lower-case hex, none of the ids
// zero.
bool IsValidTraceparent(std::string_view text);

}  // namespace attnd
