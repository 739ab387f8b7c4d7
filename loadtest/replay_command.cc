#include <algorithm>
#include <cstdio>
#include <utility>

#include "loadtest/commands.h"
#include "loadtest/runner.h"
#include "loadtest/session_workload.h"
#include "nlohmann/json.hpp"

namespace attnd::loadtest {
namespace {

// The run ends so long after the last arrival: a busy machine may wake late, and must still send
// it.
constexpr std::chrono::seconds kAfterLastArrival{1};

}  // namespace

int RunReplay(const CommonOptions& common, const ReplayOptions& replay) {
  if (replay.scenario.kind != Kind::kDecode) {
    return Fail(absl::InvalidArgumentError("replay: got kind=attend, need kind=decode"),
                kExitUsage);
  }
  absl::StatusOr<Trace> read = ReadTrace(replay.trace);
  if (!read.ok()) return Fail(read.status(), kExitUsage);
  const Trace trace = Scaled(*read, replay.scale);
  const auto server = AskServer(common);
  if (!server.ok()) return Fail(server.status(), kExitNoServer);
  const ServerAccount account(common);
  if (!account.status().ok()) return Fail(account.status(), kExitNoServer);

  ServiceWorkloadOptions options;
  options.scenario = replay.scenario;
  options.transport = common.transport;
  options.seed = common.seed;
  SessionWorkload workload(options, trace, replay.prefix_tokens);
  const std::unique_ptr<ArrivalProcess> arrivals = TraceArrivals(trace);

  RunOptions run;
  run.slots = replay.max_in_flight;
  run.arrivals = arrivals.get();
  run.duration = trace.back().arrival + kAfterLastArrival;
  run.timeout = Seconds(common.timeout_seconds);
  run.interrupt = common.interrupt;
  if (common.progress) {
    run.on_progress = [&replay](const Progress& progress) {
      DrawProgress(replay.scenario.name, progress.done, progress.ok, progress.failed,
                   progress.in_flight);
    };
  }
  if (absl::Status status = workload.Prepare(run.slots); !status.ok()) {
    return Fail(status, kExitUsage);
  }

  RunReport report;
  report.scenario = replay.scenario;
  report.open_loop = true;
  report.slots = run.slots;
  report.result = Runner(run, workload, client::SystemTime()).Run();
  EndProgress(common);
  workload.EndPrefixes();
  const double span_seconds =
      std::max(1.0, std::chrono::duration<double>(trace.back().arrival).count());
  report.offered_rate = static_cast<double>(trace.size()) / span_seconds;
  report.replay =
      ReplayReport{replay.trace,         replay.scale,     static_cast<std::int64_t>(trace.size()),
                   trace.back().arrival, workload.times(), workload.calls()};
  std::fputs(RunTable(report).c_str(), stdout);
  nlohmann::json json = ReportHeader("attnload replay", common.command, *server);
  account.Finish(json);
  json["run"] = RunJson(report);
  if (!WriteReports(common, json)) return kExitUsage;
  return ExitCodeOf(common, report.result);
}

}  // namespace attnd::loadtest
