#include "server/server_flags.h"

#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "server/flag_value.h"

namespace attnd {
namespace {

using Config = ServerConfig;
using Unit = ServerFlag::Unit;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kTiB = std::int64_t{1} << 40;
constexpr std::int64_t kMinute = 60'000;
constexpr std::int64_t kHour = 60 * kMinute;
constexpr std::int64_t kDay = 24 * kHour;
constexpr std::int64_t kMaxInt = std::numeric_limits<std::int32_t>::max();
// Protobuf's hard limit of a message.
constexpr std::int64_t kMaxMessage = 2048 * kMiB - 1;

constexpr char kAddresses[] = "Addresses";
constexpr char kDevice[] = "Device and kernels";
constexpr char kCache[] = "Cache and sequences";
constexpr char kScheduling[] = "Scheduling";
constexpr char kTransport[] = "Transport";
constexpr char kLifecycle[] = "Lifecycle";
constexpr char kLogs[] = "Logs";

constexpr ServerFlag Text(const char* name, const char* group, std::string Config::*field,
                          const char* choices, const char* meaning) {
  return {name, group, field, Unit::kNone, 0, 0, choices, meaning};
}
constexpr ServerFlag Switch(const char* name, const char* group, bool Config::*field,
                            const char* meaning) {
  return {name, group, field, Unit::kNone, 0, 0, "", meaning};
}
template <typename Number>
constexpr ServerFlag Count(const char* name, const char* group, Number Config::*field,
                           std::int64_t min, std::int64_t max, const char* meaning) {
  return {name, group, field, Unit::kNone, min, max, "", meaning};
}
template <typename Number>
constexpr ServerFlag Bytes(const char* name, const char* group, Number Config::*field,
                           std::int64_t min, std::int64_t max, const char* meaning) {
  return {name, group, field, Unit::kBytes, min, max, "", meaning};
}
constexpr ServerFlag Time(const char* name, const char* group, Milliseconds Config::*field,
                          std::int64_t min, std::int64_t max, const char* meaning) {
  return {name, group, field, Unit::kNone, min, max, "", meaning};
}

const ServerFlag kFlags[] = {
    Text("listen", kAddresses, &Config::listen, "",
         "Address of the gRPC port: host:port or unix:/path; port 0 picks a free one and the log "
         "tells which."),
    Text("admin_listen", kAddresses, &Config::admin_listen, "",
         "Address of the HTTP port for /metrics, /statusz, /healthz, /readyz and /drain: "
         "host:port; port 0 "
         "picks a free one."),
    Text("server_name", kAddresses, &Config::server_name, "",
         "Name that identifies this server inside sequence ids; unique among servers that clients "
         "may confuse."),
    {"peers", kAddresses, &Config::peers, Unit::kNone, 0, 0, "",
     "Other servers as name=address, separated by commas: a sequence id of one of them is answered "
     "with its address."},
    Switch("trust_tenant_header", kAddresses, &Config::trust_tenant_header,
           "Take the tenant from the attnd-tenant header; only where every client may be trusted. "
           "A call with two such headers is refused."),

    Text("device", kDevice, &Config::device, "auto|cpu|cuda:N",
         "Device that runs the kernels: auto takes the first GPU that can, else the CPU; cuda:N "
         "insists on a GPU."),
    Text("kernel_arch", kDevice, &Config::kernel_arch, "auto|sm75|sm80|sm90",
         "Newest kernels that a GPU runs; auto takes the newest that are written for it or for an "
         "older one."),
    Text("nvml_library", kDevice, &Config::nvml_library, "",
         "NVIDIA's management library, which tells memory, utilisation, clocks, power and "
         "temperature of the GPU for metrics and the log. A server on the CPU loads it only where "
         "another library than this one is named."),
    {"cpu_target", kDevice, &Config::cpu_target, Unit::kNone, 0, 0,
     "auto|scalar|avx2|avx512|avx512_bf16",
     "SIMD instructions of the CPU kernels; auto takes the fastest that this machine has: on "
     "Intel's processors avx512 also where avx512_bf16 is there, whose dot products are the slower "
     "ones there (docs/decisions/0005)."},
    Count("threads", kDevice, &Config::threads, 0, 1024,
          "Kernel threads; 0: as many as the cores this process may use (affinity and container "
          "quota)."),
    Switch("batch_invariant", kDevice, &Config::batch_invariant,
           "Make a sequence's result independent of what shares its batch, bit for bit, at some "
           "cost in speed."),
    Switch("allow_comparison", kDevice, &Config::allow_comparison,
           "Serve ALGORITHM_NAIVE and `alone`, which exist to measure fused kernels and batching."),
    Switch("measure_ceilings", kDevice, &Config::measure_ceilings,
           "Measure memory bandwidth at start, a short run, for metrics and GetServerInfo."),

    Bytes("cache_bytes", kCache, &Config::cache_bytes, 0, 64 * kTiB,
          "Memory of the KV cache; 0: a quarter of the memory this process may use, at most 4GiB; "
          "on a GPU all that it has free."),
    Bytes("host_cache_bytes", kCache, &Config::host_cache_bytes, 0, 64 * kTiB,
          "Host memory for the keys and values of idle sequences: when the cache is full, those "
          "idle longest move there, and back with their next step. 0: none, a full cache refuses "
          "new tokens."),
    Bytes("workspace_bytes", kCache, &Config::workspace_bytes, 0, 64 * kTiB,
          "Most working memory of one launch; a request that needs more is refused. 0: a quarter "
          "of the memory this process may use; on a GPU a sixteenth of what it has free, at most "
          "2GiB."),
    Count("page_tokens", kCache, &Config::page_tokens, 0, 256,
          "Tokens in a cache page, a power of two; 0: 16 to 64 by shape."),
    Count("max_tokens", kCache, &Config::max_tokens, 1, kMaxInt,
          "Most tokens of a sequence in one layer; what is advertised is at most what the cache "
          "holds."),
    Count("window_slack_tokens", kCache, &Config::window_slack_tokens, 0, kMaxInt,
          "Tokens that a layer with a window keeps beyond it, for rollbacks."),
    Time("default_lease", kCache, &Config::default_lease, 1, 30 * kDay,
         "Life of a sequence without an answered step or renewal, where its creator names none."),
    Time("max_lease", kCache, &Config::max_lease, 1, 30 * kDay,
         "Longest lease that is granted; longer ones are clipped."),
    Count("max_sequences", kCache, &Config::max_sequences, 1, 100'000'000, "Most live sequences."),
    Count("max_heads", kCache, &Config::max_heads, 1, 65'536, "Most query heads of a request."),
    Count("max_layers", kCache, &Config::max_layers, 1, 65'536, "Most layers of a sequence."),

    Count("max_queue_requests", kScheduling, &Config::max_queue_requests, 1, 10'000'000,
          "Most requests that wait; beyond it requests are refused with a delay to retry after. An "
          "Attend or Decode that finds the queue full, or more messages on their way than free "
          "places and 4, is refused before its message is received."),
    Bytes("max_queue_bytes", kScheduling, &Config::max_queue_bytes, kMiB, 64 * kTiB,
          "Most bytes of waiting requests; at least max_message_bytes."),
    Count("max_batch_sequences", kScheduling, &Config::max_batch_sequences, 1, 1'000'000,
          "Most sequences in one launch."),
    Count("max_batch_tokens", kScheduling, &Config::max_batch_tokens, kernels::kMaxDecodeRows,
          100'000'000, "Most query tokens in one launch; longer prompts run in several."),
    Time("max_queue_delay", kScheduling, &Config::max_queue_delay, 0, kMinute,
         "How long an idle device waits for more work before it launches; 0: not at all, batches "
         "form while the device is busy."),
    Time("prefill_chunk_time", kScheduling, &Config::prefill_chunk_time, 1, kMinute,
         "Aim for the longest prefill launch while decodes wait."),
    Count(
        "decode_share_percent", kScheduling, &Config::decode_share_percent, 0, 95,
        "Share of the time that prefill leaves to decodes while they keep coming: after a prefill "
        "launch of 20ms, 35 keeps the next one back for 11ms. 0: prefill launches follow one "
        "another, with one launch of what decodes wait between."),
    Time("default_timeout", kScheduling, &Config::default_timeout, 0, kDay,
         "Time limit of requests that name none; 0: only the call's deadline."),
    Count("max_steps", kScheduling, &Config::max_steps, 1, 1'000'000, "Most steps in one Decode."),
    Count("max_in_flight_per_stream", kScheduling, &Config::max_in_flight_per_stream, 1, 1'000'000,
          "Most unanswered messages of one DecodeStream; the server reads no further until one is "
          "answered."),

    Bytes("max_message_bytes", kTransport, &Config::max_message_bytes, 64 * 1024, kMaxMessage,
          "Largest message of a client; replies are bounded by their requests."),
    Count(
        "max_connections", kTransport, &Config::max_connections, 0, 1'000'000,
        "Most connections to the gRPC port; further ones are closed at once. 0: what the limit of "
        "open files (ulimit -n) leaves, at most 16384."),
    Count("max_concurrent_streams", kTransport, &Config::max_concurrent_streams, 0, 1'000'000,
          "Most calls in flight on one connection. 0: half as many again as max_queue_requests, 16 "
          "to 4096."),
    Bytes("max_header_bytes", kTransport, &Config::max_header_bytes, 1024, 1024 * 1024,
          "Largest metadata of a call."),
    Switch("bdp_probe", kTransport, &Config::bdp_probe,
           "Let gRPC widen HTTP/2 windows by the bandwidth and the distance that it measures: for "
           "clients far away, which otherwise send about one message above 64KiB a round trip. A "
           "call that is refused may then have sent much of its message."),
    Count("max_unary_in_flight", kTransport, &Config::max_unary_in_flight, 0, 10'000'000,
          "Most Attend and Decode calls whose message has come; 0: bounded by the queue alone."),

    Time("stall_limit", kLifecycle, &Config::stall_limit, 100, kDay,
         "Work in flight and no completion for so long turns readiness off."),
    Time("stall_exit", kLifecycle, &Config::stall_exit, 0, kDay,
         "Work in flight and no completion for so long ends the process with exit code 3, for a "
         "supervisor to start it again; 0: never."),
    Time("lame_duck", kLifecycle, &Config::lame_duck, 0, 10 * kMinute,
         "How long after SIGTERM new calls are still answered (UNAVAILABLE), so that balancers "
         "notice; a call that comes later, while the port closes, may end CANCELLED."),
    Time("stop_limit", kLifecycle, &Config::stop_limit, 1, kDay,
         "Longest time from SIGTERM to exit; longer than lame_duck."),
    Time("retire_limit", kLifecycle, &Config::retire_limit, 0, 30 * kDay,
         "How far a retiring server renews leases, counted from the drain."),

    Text("log_level", kLogs, &Config::log_level, "trace|debug|info|warn|error",
         "Least severe messages that are logged."),
    Text("log_format", kLogs, &Config::log_format, "text|json", "Form of a log line."),
    Time("slow_request", kLogs, &Config::slow_request, 0, kDay,
         "Requests slower than this are logged with their traceparent; 0: none."),
};

absl::Status GotNeed(std::string_view got, absl::string_view need) {
  return absl::InvalidArgumentError(absl::StrCat("got '", std::string(got), "', need ", need));
}

std::string RangeText(const ServerFlag& flag) {
  const auto text = [&flag](std::int64_t value) {
    if (std::holds_alternative<Milliseconds Config::*>(flag.field)) {
      return FormatDuration(Milliseconds(value));
    }
    return flag.unit == Unit::kBytes ? FormatByteSize(value) : absl::StrCat(value);
  };
  return absl::StrCat(text(flag.min), " to ", text(flag.max));
}

std::string ChoicesText(const ServerFlag& flag) {
  return absl::StrCat("one of ", absl::StrJoin(absl::StrSplit(flag.choices, '|'), ", "));
}

// The number that the range is about; nothing for text and switches.
struct RangedValue {
  bool ranged = false;
  std::int64_t value = 0;
};

RangedValue ValueOf(const ServerFlag& flag, const Config& config) {
  if (const auto* field = std::get_if<int Config::*>(&flag.field)) return {true, config.**field};
  if (const auto* field = std::get_if<std::int64_t Config::*>(&flag.field)) {
    return {true, config.**field};
  }
  if (const auto* field = std::get_if<Milliseconds Config::*>(&flag.field)) {
    return {true, (config.**field).count()};
  }
  return {};
}

bool IsChoice(const ServerFlag& flag, const std::string& text) {
  for (const absl::string_view choice : absl::StrSplit(flag.choices, '|')) {
    if (choice == text) return true;
    // "cuda:N" stands for any number behind the colon.
    if (!absl::EndsWith(choice, ":N") || text.size() < choice.size()) continue;
    const absl::string_view number = absl::string_view(text).substr(choice.size() - 1);
    if (absl::StartsWith(text, choice.substr(0, choice.size() - 1)) && number.size() <= 3 &&
        number.find_first_not_of("0123456789") == absl::string_view::npos) {
      return true;
    }
  }
  return false;
}

// A number of the flag's kind, within its range.
absl::StatusOr<std::int64_t> ParseRanged(const ServerFlag& flag, std::string_view text) {
  absl::StatusOr<std::int64_t> value;
  if (std::holds_alternative<Milliseconds Config::*>(flag.field)) {
    const absl::StatusOr<Milliseconds> duration = ParseDuration(text);
    if (!duration.ok()) return GotNeed(text, duration.status().message());
    value = duration->count();
  } else {
    value = flag.unit == Unit::kBytes ? ParseByteSize(text) : ParseCount(text);
  }
  if (!value.ok()) return GotNeed(text, value.status().message());
  if (*value < flag.min || *value > flag.max) return GotNeed(text, RangeText(flag));
  return value;
}

std::vector<std::string> SplitList(std::string_view text) {
  return absl::StrSplit(std::string(text), ',', absl::SkipWhitespace());
}

}  // namespace

std::span<const ServerFlag> ServerFlags() { return kFlags; }

const ServerFlag* FindServerFlag(std::string_view name) {
  for (const ServerFlag& flag : kFlags) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

absl::Status SetServerFlag(const ServerFlag& flag, std::string_view text, ServerConfig& config) {
  if (const auto* field = std::get_if<std::string Config::*>(&flag.field)) {
    if (flag.choices[0] != '\0' && !IsChoice(flag, std::string(text))) {
      return GotNeed(text, ChoicesText(flag));
    }
    config.** field = text;
    return absl::OkStatus();
  }
  if (const auto* field = std::get_if<std::vector<std::string> Config::*>(&flag.field)) {
    config.** field = SplitList(text);
    return absl::OkStatus();
  }
  if (const auto* field = std::get_if<bool Config::*>(&flag.field)) {
    const absl::StatusOr<bool> value = ParseBool(text);
    if (!value.ok()) return GotNeed(text, value.status().message());
    config.** field = *value;
    return absl::OkStatus();
  }
  if (const auto* field = std::get_if<kernels::CpuTarget Config::*>(&flag.field)) {
    if (!kernels::ParseCpuTarget(std::string(text).c_str(), config.**field)) {
      return GotNeed(text, ChoicesText(flag));
    }
    return absl::OkStatus();
  }
  const absl::StatusOr<std::int64_t> value = ParseRanged(flag, text);
  if (!value.ok()) return value.status();
  if (const auto* field = std::get_if<int Config::*>(&flag.field)) {
    config.** field = static_cast<int>(*value);
  } else if (const auto* wide = std::get_if<std::int64_t Config::*>(&flag.field)) {
    config.** wide = *value;
  } else {
    config.*std::get<Milliseconds Config::*>(flag.field) = Milliseconds(*value);
  }
  return absl::OkStatus();
}

absl::Status CheckServerFlag(const ServerFlag& flag, const ServerConfig& config) {
  const RangedValue ranged = ValueOf(flag, config);
  if (ranged.ranged && (ranged.value < flag.min || ranged.value > flag.max)) {
    return GotNeed(ServerFlagText(flag, config), RangeText(flag));
  }
  const auto* text = std::get_if<std::string Config::*>(&flag.field);
  if (text != nullptr && flag.choices[0] != '\0' && !IsChoice(flag, config.**text)) {
    return GotNeed(config.**text, ChoicesText(flag));
  }
  return absl::OkStatus();
}

std::string ServerFlagText(const ServerFlag& flag, const ServerConfig& config) {
  if (const auto* field = std::get_if<std::string Config::*>(&flag.field)) return config.**field;
  if (const auto* field = std::get_if<std::vector<std::string> Config::*>(&flag.field)) {
    return absl::StrJoin(config.**field, ",");
  }
  if (const auto* field = std::get_if<bool Config::*>(&flag.field)) {
    return config.**field ? "true" : "false";
  }
  if (const auto* field = std::get_if<kernels::CpuTarget Config::*>(&flag.field)) {
    return kernels::CpuTargetName(config.**field);
  }
  const std::int64_t value = ValueOf(flag, config).value;
  if (std::holds_alternative<Milliseconds Config::*>(flag.field)) {
    return FormatDuration(Milliseconds(value));
  }
  return flag.unit == Unit::kBytes ? FormatByteSize(value) : absl::StrCat(value);
}

std::string ServerFlagPlaceholder(const ServerFlag& flag) {
  if (flag.choices[0] != '\0') return flag.choices;
  if (std::holds_alternative<bool Config::*>(flag.field)) return "true|false";
  if (std::holds_alternative<Milliseconds Config::*>(flag.field)) return "DURATION";
  if (flag.unit == Unit::kBytes) return "SIZE";
  if (std::holds_alternative<std::vector<std::string> Config::*>(flag.field)) return "LIST";
  return std::holds_alternative<std::string Config::*>(flag.field) ? "TEXT" : "N";
}

}  // namespace attnd
