// Structured logs on stderr: a message in constant words and key=value fields, as text or as a JSON
// object a line. Values are escaped and cut, so that nothing a client sends can forge a line. Never
// log tensor content, tokens or credentials.
#pragma once

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/clock.h"

namespace attnd {

enum class LogLevel : std::uint8_t { kTrace, kDebug, kInfo, kWarn, kError };
enum class LogFormat : std::uint8_t { kText, kJson };

struct LogField {
  template <std::integral Integer>
  LogField(std::string_view field_key, Integer number)
      : key(field_key), value(std::to_string(number)), is_number(true) {}
  LogField(std::string_view field_key, bool truth)
      : key(field_key), value(truth ? "true" : "false"), is_number(true) {}
  LogField(std::string_view field_key, double number);
  LogField(std::string_view field_key, std::string_view text) : key(field_key), value(text) {}
  LogField(std::string_view field_key, const std::string& text) : key(field_key), value(text) {}
  LogField(std::string_view field_key, const char* text) : key(field_key), value(text) {}
  // In seconds.
  LogField(std::string_view field_key, Clock::Duration duration);

  std::string_view key;  // snake_case
  std::string value;
  bool is_number = false;  // written without quotes
};

// Names as in ServerConfig: trace, debug, info, warn, error; text, json. Called once, before other
// threads log; without it messages of kInfo and above go to stderr as text.
absl::Status SetUpLogging(std::string_view level, std::string_view format);
// For tests: everything from `level` on goes to `stream`, which outlives the next call.
void LogToStream(std::ostream& stream, LogLevel level, LogFormat format);

// Thread-safe.
void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {});
bool LogEnabled(LogLevel level);

// Lets one of a kind of message through per interval. Thread-safe, lock-free.
class LogGate {
 public:
  constexpr explicit LogGate(Clock::Duration interval = std::chrono::seconds(1))
      : interval_(interval) {}
  // The number of messages held back since the last one, if this one may be logged.
  std::optional<std::int64_t> Admit(Clock::TimePoint now);

 private:
  const Clock::Duration interval_;
  std::atomic<std::int64_t> next_nanoseconds_{0};  // 0: the first one passes
  std::atomic<std::int64_t> held_back_{0};
};

}  // namespace attnd
