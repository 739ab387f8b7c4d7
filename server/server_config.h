// Every knob of the server in one struct. Parsed and range-checked once: a flag on the command line
// wins over the YAML file named by --config (same names), that over the defaults below. Nothing
// else in the server reads flags or the environment. A new field gets a row in server_flags.cc.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/attention_kernels.h"

namespace attnd {

using Milliseconds = std::chrono::milliseconds;

struct ServerConfig {
  // Addresses: host:port, or unix:/path for `listen`; port 0 picks a free one and the log tells
  // which.
  std::string listen = "127.0.0.1:8001";
  std::string admin_listen = "127.0.0.1:8002";
  std::string server_name = "attnd";  // identifies this server inside sequence ids
  std::vector<std::string> peers;     // name=address of other servers, for OTHER_SERVER
  bool trust_tenant_header = false;   // take the tenant from the attnd-tenant header

  // Device and kernels.
  std::string device = "auto";       // auto, cpu, cuda:N
  std::string kernel_arch = "auto";  // auto, sm75, sm80, sm90: rows that a GPU runs
  // On the CPU read only where it names another library: see attnd_server.cc.
  std::string nvml_library = "libnvidia-ml.so.1";
  kernels::CpuTarget cpu_target = kernels::CpuTarget::kAuto;
  int threads = 0;  // kernel threads; 0: the cores this process may use
  bool batch_invariant = false;
  bool allow_comparison = true;  // NAIVE and `alone`
  bool measure_ceilings = true;  // short bandwidth test at start

  // Cache.
  // Page pool; 0: a quarter of the memory, at most 4 GiB; on a GPU what it has free.
  std::int64_t cache_bytes = 0;
  // Host memory for pages of idle sequences while the pool is full; 0: none.
  std::int64_t host_cache_bytes = 0;
  // Most working memory of one launch; 0: a quarter of the memory, a sixteenth of a GPU's.
  std::int64_t workspace_bytes = 0;
  int page_tokens = 0;  // tokens a page; 0: 16 to 64 by shape
  std::int64_t max_tokens =
      1'048'576;  // per layer; the advertised limit is at most what the pool holds
  std::int64_t window_slack_tokens = 256;
  Milliseconds default_lease{600'000};
  Milliseconds max_lease{3'600'000};
  std::int64_t max_sequences = 100'000;  // live ones; beyond: RESOURCE_EXHAUSTED, QUOTA
  int max_heads = 1024;
  int max_layers = 1024;

  // Scheduling.
  int max_queue_requests = 4096;
  std::int64_t max_queue_bytes = std::int64_t{2} << 30;
  int max_batch_sequences = 256;
  int max_batch_tokens = 65'536;
  Milliseconds max_queue_delay{0};      // wait for more work when the device is idle
  Milliseconds prefill_chunk_time{20};  // a prefill launch aims at most at this while decodes wait
  int decode_share_percent = 35;        // of the time, beside prefill, while decodes keep coming
  Milliseconds default_timeout{0};      // 0: none beyond the call's deadline
  int max_steps = 1024;                 // per request
  int max_in_flight_per_stream = 64;

  // Transport.
  std::int64_t max_message_bytes = std::int64_t{256} << 20;
  int max_connections = 0;         // to the gRPC port; 0: what the limit of open files leaves
  int max_concurrent_streams = 0;  // per connection; 0: by max_queue_requests
  int max_header_bytes = 16 * 1024;
  bool bdp_probe = false;       // HTTP/2 windows grow with bandwidth and distance
  int max_unary_in_flight = 0;  // concurrent Attend and Decode calls; 0: bounded by the queue alone

  // Lifecycle.
  Milliseconds stall_limit{30'000};  // work in flight and no completion for so long: NOT_SERVING
  Milliseconds stall_exit{0};        // as long as this: the process ends with exit code 3; 0: never
  Milliseconds lame_duck{1'000};
  Milliseconds stop_limit{20'000};
  Milliseconds retire_limit{600'000};

  // Logs.
  std::string log_level = "info";    // trace, debug, info, warn, error
  std::string log_format = "text";   // text, json
  Milliseconds slow_request{1'000};  // slower ones are logged with their traceparent; 0: none
};

struct ParsedCommandLine {
  ServerConfig config;
  bool exit_now = false;  // --help or --version was printed
};

// Reads flags and the YAML file and validates. An error names the flag or the file, line and key,
// what it got and what it needs. Fields that are 0 for "by this machine" are still 0: see
// machine_resources.h.
absl::StatusOr<ParsedCommandLine> ParseServerCommandLine(int argc, const char* const* argv);

// Checks ranges and relations of a config built in code (tests) or parsed.
absl::Status ValidateServerConfig(const ServerConfig& config);

// The text of --help, and of docs/configuration.md.
std::string ServerHelp();
std::string FlagsAsMarkdown();

}  // namespace attnd
