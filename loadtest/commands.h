// The subcommands of attnload. Each prints its table to standard output and returns an exit code.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/transport.h"
#include "loadtest/report.h"
#include "loadtest/scenario.h"
#include "loadtest/trace.h"

namespace attnd::loadtest {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailures = 1;  // more failures than --max_failure_ratio
inline constexpr int kExitUsage = 2;     // flags, files
inline constexpr int kExitNoServer = 3;  // not reachable, or it refused the preparation
inline constexpr int kExitInterrupted = 130;

struct CommonOptions {
  client::TransportOptions transport;
  double connect_timeout_seconds = 5;
  double timeout_seconds = 30;
  double max_failure_ratio = 0.01;
  std::uint64_t seed = 1;
  std::string json_path;  // empty: none
  std::string csv_path;   // empty: none
  std::string admin;      // the server's admin port, for its own account of the run; empty: none
  bool progress = true;   // on standard error
  std::vector<std::string> command;
  std::string program;  // attnload itself, which also serves the echo
  const std::atomic<bool>* interrupt = nullptr;
};

struct LoadOptions {
  Scenario scenario;
  double rate = 0;       // requests a second; 0: closed loop
  std::string arrivals;  // poisson, constant, burst
  double warmup_seconds = 1;
  double settle_percent = 0;  // 0: the warm-up ends by the clock
  double duration_seconds = 10;
  std::int64_t max_requests = 0;
  int max_in_flight = 0;  // open loop
  std::optional<double> slo_ms;
  v1::ExecutionOptions execution;
  bool floor = true;
  int processes = 1;  // that share workers, rate and requests in flight
  int worker = -1;    // this process is one of them; -1: it is not
};
int RunLoad(const CommonOptions& common, const LoadOptions& load);

struct ReplayOptions {
  Scenario scenario;  // kind=decode: shape, layers and connections; lengths are the trace's
  std::string trace;  // path
  TraceScale scale;
  int max_in_flight = 256;              // sessions
  std::int64_t prefix_tokens = 65'536;  // kept for prompts that share their start; 0: none
};
int RunReplay(const CommonOptions& common, const ReplayOptions& replay);

struct FloorOptions {
  std::vector<Scenario> scenarios;
  double duration_seconds = 5;
};
int RunFloor(const CommonOptions& common, const FloorOptions& floor);

struct CompareOptions {
  std::vector<Scenario> scenarios;
  int blocks = 7;
  double block_seconds = 0.5;
  double floor_seconds = 1;
  bool batching = true;  // also both with `alone`, where more than one request is in flight
};
int RunCompare(const CommonOptions& common, const CompareOptions& compare);

// What the subcommands share.

// The scenario against a fresh echo process, closed loop.
absl::StatusOr<FloorResult> MeasureFloor(const CommonOptions& common, const Scenario& scenario,
                                         double seconds);
// Waits for a connection and asks the server what it is; the status says what is wrong.
absl::StatusOr<v1::GetServerInfoResponse> AskServer(const CommonOptions& common);
// Whether the files that --json and --csv name can be written: told before a run, not after it.
absl::Status CheckReportPaths(const CommonOptions& common);
// Writes the report where --json and --csv ask for it, and names the files on standard output.
bool WriteReports(const CommonOptions& common, const nlohmann::json& report);

// The server's account of what happened between construction and Finish, in "server_work" of a
// report; nothing without --admin.
class ServerAccount {
 public:
  explicit ServerAccount(const CommonOptions& common);
  // Why there is none although one is asked for.
  const absl::Status& status() const { return status_; }
  void Finish(nlohmann::json& report) const;

 private:
  const std::string admin_;
  absl::Status status_;
  std::shared_ptr<const nlohmann::json> before_;
};

// Draws "[#####     ]  51 %  1234 ok, 2 failed, 8 in flight" on standard error, over the last one.
void DrawProgress(const std::string& label, double done, std::int64_t ok, std::int64_t failed,
                  std::int64_t in_flight);
void EndProgress(const CommonOptions& common);
int Fail(const absl::Status& status, int exit_code);
// Of a run that ended: interrupted, too many failures, nothing measured, or OK.
int ExitCodeOf(const CommonOptions& common, const RunResult& result);

// At most 31 years: what flags ask for must not overflow.
inline std::chrono::nanoseconds Seconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(std::min(seconds, 1e9)));
}

}  // namespace attnd::loadtest
