// Results as tables for people and JSON for scripts.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "attnd/v1/attention.pb.h"
#include "loadtest/comparison.h"
#include "loadtest/run_result.h"
#include "loadtest/scenario.h"
#include "loadtest/session_workload.h"
#include "loadtest/trace.h"
#include "nlohmann/json_fwd.hpp"

namespace attnd::loadtest {

// One scenario against the echo server.
struct FloorResult {
  RunResult run;
  std::int64_t request_bytes = 0, reply_bytes = 0;
};

// One side of a comparison: all its blocks, and each block's token rate.
struct Side {
  RunResult run;
  std::vector<double> block_rates;
};

struct ScenarioComparison {
  Scenario scenario;
  Side fused, naive;
  std::optional<Side> alone, naive_alone;  // fused and naive, never batched
  Interval fused_over_naive;
  std::optional<Interval> batching_on_over_off, naive_batching_on_over_off;
  FloorResult floor;
};

// Of a replayed trace: sessions are the operations of its run.
struct ReplayReport {
  std::string trace;  // path
  TraceScale scale;
  std::int64_t sessions = 0;
  std::chrono::nanoseconds span{0};  // first to last arrival, scaled
  SessionTimes times;
  CallCounts calls;
};

// Of a run: its settings beside its result.
struct RunReport {
  Scenario scenario;
  bool open_loop = false;
  double offered_rate = 0;  // open loop, requests a second
  int slots = 1;
  int processes = 1;             // of the load generator
  std::optional<double> slo_ms;  // goodput counts OK answers within it
  RunResult result;
  std::optional<FloorResult> floor;
  std::optional<ReplayReport> replay;
};

// Text ends with a newline.
std::string RunTable(const RunReport& report);
std::string FloorTable(const Scenario& scenario, const FloorResult& floor);
std::string ComparisonTable(const std::vector<ScenarioComparison>& comparisons);

nlohmann::json RunJson(const RunReport& report);
nlohmann::json FloorJson(const Scenario& scenario, const FloorResult& floor);
nlohmann::json ComparisonJson(const ScenarioComparison& comparison);

// Tool, version, date, command, machine, and (where known) the server.
nlohmann::json ReportHeader(const std::string& tool, const std::vector<std::string>& command,
                            const std::optional<v1::GetServerInfoResponse>& server);

// One line a run, or a side of a comparison, or a floor, of a whole report as it is written to
// JSON.
std::string ReportCsv(const nlohmann::json& report);

absl::Status WriteReport(const std::string& path, const nlohmann::json& report);

}  // namespace attnd::loadtest
