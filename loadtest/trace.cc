#include "loadtest/trace.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "client/file_bytes.h"
#include "nlohmann/json.hpp"

namespace attnd::loadtest {
namespace {

constexpr absl::string_view kAzureHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";
constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;

absl::Status InLine(std::size_t number, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", number, ": ", what));
}

absl::StatusOr<std::int64_t> TokensOf(std::int64_t tokens, std::size_t number) {
  if (tokens < 0 || tokens > kMostTokens) {
    return InLine(number, absl::StrCat("got ", tokens, " tokens, need 0 to ", kMostTokens));
  }
  return std::max<std::int64_t>(1, tokens);
}

// Checks that time does not run backwards and makes it relative to the first record.
absl::Status Append(Trace& trace, std::chrono::nanoseconds time, std::int64_t prompt,
                    std::int64_t output, std::size_t number, std::chrono::nanoseconds& first) {
  if (trace.empty()) first = time;
  const auto prompt_tokens = TokensOf(prompt, number);
  if (!prompt_tokens.ok()) return prompt_tokens.status();
  const auto output_tokens = TokensOf(output, number);
  if (!output_tokens.ok()) return output_tokens.status();
  const std::chrono::nanoseconds arrival = time - first;
  if (!trace.empty() && arrival < trace.back().arrival) {
    return InLine(number, "earlier than the line before");
  }
  trace.push_back({arrival, *prompt_tokens, *output_tokens, {}});
  return absl::OkStatus();
}

absl::StatusOr<Trace> NotEmpty(Trace trace) {
  if (trace.empty()) return absl::InvalidArgumentError("holds no record");
  return trace;
}

// Calls parse(line, number) for every line that is not blank.
template <typename Parse>
absl::Status ForEachLine(std::string_view text, Parse parse) {
  std::size_t number = 0;
  // Abseil's own type on systems whose Abseil is built for C++14.
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    ++number;
    line = absl::StripSuffix(line, "\r");
    if (line.empty()) continue;
    if (absl::Status status = parse(line, number); !status.ok()) return status;
  }
  return absl::OkStatus();
}

class Offsets final : public ArrivalProcess {
 public:
  explicit Offsets(const Trace& trace) {
    for (const TraceRecord& record : trace) offsets_.push_back(record.arrival);
  }
  Duration Next() override {
    return next_ < offsets_.size() ? offsets_[next_++] : Duration(std::chrono::hours(24 * 365));
  }

 private:
  std::vector<Duration> offsets_;
  std::size_t next_ = 0;
};

}  // namespace

absl::StatusOr<Trace> ParseAzureTrace(std::string_view text) {
  Trace trace;
  std::chrono::nanoseconds first{0};
  const absl::Status status = ForEachLine(text, [&](absl::string_view line, std::size_t number) {
    if (number == 1) {
      if (line == kAzureHeader) return absl::OkStatus();
      return InLine(1, absl::StrCat("got '", line, "', need '", kAzureHeader, "'"));
    }
    const std::vector<absl::string_view> fields = absl::StrSplit(line, ',');
    absl::Time time;
    std::string fault;
    std::int64_t prompt = 0;
    std::int64_t output = 0;
    if (fields.size() != 3 ||
        !absl::ParseTime("%Y-%m-%d %H:%M:%E*S", fields[0], absl::UTCTimeZone(), &time, &fault) ||
        !absl::SimpleAtoi(fields[1], &prompt) || !absl::SimpleAtoi(fields[2], &output)) {
      return InLine(number, absl::StrCat("got '", line, "', need date and time, tokens, tokens"));
    }
    const std::chrono::nanoseconds since_epoch =
        absl::ToChronoNanoseconds(time - absl::UnixEpoch());
    return Append(trace, since_epoch, prompt, output, number, first);
  });
  return status.ok() ? NotEmpty(std::move(trace)) : absl::StatusOr<Trace>(status);
}

absl::StatusOr<Trace> ParseMooncakeTrace(std::string_view text) {
  Trace trace;
  std::chrono::nanoseconds first{0};
  const absl::Status status = ForEachLine(text, [&](absl::string_view line, std::size_t number) {
    const auto json =
        nlohmann::json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
    for (const char* key : {"timestamp", "input_length", "output_length"}) {
      if (!json.is_object() || !json.contains(key) || !json[key].is_number_integer()) {
        return InLine(number, absl::StrCat("need an object with the whole number '", key, "'"));
      }
    }
    absl::Status appended =
        Append(trace, std::chrono::milliseconds(json["timestamp"].get<std::int64_t>()),
               json["input_length"].get<std::int64_t>(), json["output_length"].get<std::int64_t>(),
               number, first);
    if (!appended.ok() || !json.contains("hash_ids")) return appended;
    const auto& blocks = json["hash_ids"];
    const auto is_name = [](const auto& each) { return each.is_number_integer(); };
    if (!blocks.is_array() || !std::all_of(blocks.begin(), blocks.end(), is_name)) {
      return InLine(number, "need a list of whole numbers for 'hash_ids'");
    }
    trace.back().blocks = blocks.template get<std::vector<std::int64_t>>();
    return absl::OkStatus();
  });
  return status.ok() ? NotEmpty(std::move(trace)) : absl::StatusOr<Trace>(status);
}

absl::StatusOr<Trace> ReadTrace(const std::string& path) {
  const absl::StatusOr<client::FileBytes> file = client::ReadFileBytes(path);
  if (!file.ok()) return file.status();
  const std::string_view text(reinterpret_cast<const char*>(file->data.get()),
                              static_cast<std::size_t>(file->size));
  absl::StatusOr<Trace> trace = absl::InvalidArgumentError("need a .csv or a .jsonl file");
  if (path.ends_with(".csv")) {
    trace = ParseAzureTrace(text);
  } else if (path.ends_with(".jsonl")) {
    trace = ParseMooncakeTrace(text);
  }
  if (trace.ok()) return trace;
  return absl::Status(trace.status().code(), absl::StrCat(path, ": ", trace.status().message()));
}

std::size_t WholeBlocks(const TraceRecord& record) {
  return std::min(record.blocks.size(),
                  static_cast<std::size_t>(record.prompt_tokens / record.block_tokens));
}

Trace Scaled(const Trace& trace, const TraceScale& scale) {
  Trace scaled = trace;
  if (scale.limit > 0 && static_cast<std::size_t>(scale.limit) < scaled.size()) {
    scaled.resize(static_cast<std::size_t>(scale.limit));
  }
  const auto length = [&scale](std::int64_t tokens) {
    return std::max<std::int64_t>(1, std::llround(static_cast<double>(tokens) * scale.lengths));
  };
  for (TraceRecord& record : scaled) {
    record.arrival = std::chrono::nanoseconds(
        std::llround(static_cast<double>(record.arrival.count()) / scale.speed));
    record.prompt_tokens = length(record.prompt_tokens);
    record.output_tokens = length(record.output_tokens);
    record.block_tokens = length(record.block_tokens);
  }
  return scaled;
}

std::unique_ptr<ArrivalProcess> TraceArrivals(const Trace& trace) {
  return std::make_unique<Offsets>(trace);
}

}  // namespace attnd::loadtest
