#include "server/logging.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace attnd {
namespace {

// A line stays readable and below what log shippers cut (16 KiB), whatever a field holds.
constexpr std::size_t kMaxValueBytes = 1024;

struct Output {
  std::shared_ptr<spdlog::logger> logger;
  LogFormat format = LogFormat::kText;
};

std::shared_ptr<Output> MakeOutput(spdlog::sink_ptr sink, LogLevel level, LogFormat format) {
  auto output = std::make_shared<Output>();
  output->format = format;
  output->logger = std::make_shared<spdlog::logger>("attnd", std::move(sink));
  output->logger->set_level(static_cast<spdlog::level::level_enum>(level));
  output->logger->flush_on(spdlog::level::trace);
  const char* pattern = format == LogFormat::kJson
                            ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l",%v})"
                            : "%Y-%m-%dT%H:%M:%S.%eZ %l %v";
  output->logger->set_pattern(pattern, spdlog::pattern_time_type::utc);
  return output;
}

std::shared_ptr<Output>& CurrentOutput() {
  static std::shared_ptr<Output> output = MakeOutput(
      std::make_shared<spdlog::sinks::stderr_sink_mt>(), LogLevel::kInfo, LogFormat::kText);
  return output;
}

// Quoted, with control characters escaped and bytes that are not UTF-8 replaced.
std::string Quote(std::string_view text) {
  const bool cut = text.size() > kMaxValueBytes;
  std::string shown(text.substr(0, kMaxValueBytes));
  if (cut) shown += "...";
  return nlohmann::json(shown).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool IsPlain(std::string_view text) {
  if (text.empty() || text.size() > kMaxValueBytes) return false;
  for (const char c : text) {
    if (c <= ' ' || c > '~' || c == '"' || c == '=' || c == '\\') return false;
  }
  return true;
}

std::string FormatLine(LogFormat format, std::string_view message,
                       std::initializer_list<LogField> fields) {
  const bool json = format == LogFormat::kJson;
  std::string line = json ? absl::StrCat("\"message\":", Quote(message)) : std::string(message);
  for (const LogField& field : fields) {
    const std::string key(field.key);
    if (json) {
      absl::StrAppend(&line, ",\"", key, "\":", field.is_number ? field.value : Quote(field.value));
    } else {
      absl::StrAppend(&line, " ", key, "=",
                      IsPlain(field.value) ? field.value : Quote(field.value));
    }
  }
  return line;
}

}  // namespace

// JSON has no NaN and no infinity.
LogField::LogField(std::string_view field_key, double number)
    : key(field_key), value(nlohmann::json(number).dump()), is_number(true) {}

LogField::LogField(std::string_view field_key, Clock::Duration duration)
    : LogField(field_key, std::chrono::duration<double>(duration).count()) {}

absl::Status SetUpLogging(std::string_view level, std::string_view format) {
  constexpr std::pair<std::string_view, LogLevel> kLevels[] = {{"trace", LogLevel::kTrace},
                                                               {"debug", LogLevel::kDebug},
                                                               {"info", LogLevel::kInfo},
                                                               {"warn", LogLevel::kWarn},
                                                               {"error", LogLevel::kError}};
  if (format != "text" && format != "json") {
    return absl::InvalidArgumentError(
        absl::StrCat("log format: got '", std::string(format), "', need text or json"));
  }
  for (const auto& [name, value] : kLevels) {
    if (name != level) continue;
    CurrentOutput() = MakeOutput(std::make_shared<spdlog::sinks::stderr_sink_mt>(), value,
                                 format == "json" ? LogFormat::kJson : LogFormat::kText);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("log level: got '", std::string(level),
                                                 "', need trace, debug, info, warn or error"));
}

void LogToStream(std::ostream& stream, LogLevel level, LogFormat format) {
  CurrentOutput() =
      MakeOutput(std::make_shared<spdlog::sinks::ostream_sink_mt>(stream), level, format);
}

bool LogEnabled(LogLevel level) {
  return CurrentOutput()->logger->should_log(static_cast<spdlog::level::level_enum>(level));
}

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  if (!LogEnabled(level)) return;
  const Output& output = *CurrentOutput();
  const std::string line = FormatLine(output.format, message, fields);
  output.logger->log(static_cast<spdlog::level::level_enum>(level),
                     spdlog::string_view_t(line.data(), line.size()));
}

std::optional<std::int64_t> LogGate::Admit(Clock::TimePoint now) {
  const std::int64_t time = now.time_since_epoch().count();
  std::int64_t next = next_nanoseconds_.load(std::memory_order_relaxed);
  if (time < next || !next_nanoseconds_.compare_exchange_strong(next, time + interval_.count(),
                                                                std::memory_order_relaxed)) {
    held_back_.fetch_add(1, std::memory_order_relaxed);
    return std::nullopt;
  }
  return held_back_.exchange(0, std::memory_order_relaxed);
}

}  // namespace attnd
