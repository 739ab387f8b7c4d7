#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "loadtest/commands.h"
#include "loadtest/runner.h"
#include "loadtest/worker_processes.h"
#include "nlohmann/json.hpp"

namespace attnd::loadtest {
namespace {

constexpr double kFloorSeconds = 2;

absl::Status ParentGone() { return absl::CancelledError("the parent process is gone"); }

RunOptions OptionsOf(const CommonOptions& common, const LoadOptions& load,
                     ArrivalProcess* arrivals) {
  RunOptions run;
  run.slots = arrivals != nullptr ? load.max_in_flight : load.scenario.workers;
  run.arrivals = arrivals;
  run.yield_when_dense = true;
  run.warmup = Seconds(load.warmup_seconds);
  run.settle_tolerance = load.settle_percent / 100;
  run.duration = Seconds(load.duration_seconds);
  run.max_requests = load.max_requests;
  run.timeout = Seconds(common.timeout_seconds);
  run.interrupt = common.interrupt;
  if (common.progress) {
    run.on_progress = [name = load.scenario.name](const Progress& progress) {
      DrawProgress(name, progress.done, progress.ok, progress.failed, progress.in_flight);
    };
  }
  return run;
}

// The scenario's load by this process, from `share` of it. `go` is called when all is prepared; no
// run where it answers false.
template <typename Go>
absl::StatusOr<RunResult> Run(const CommonOptions& common, const LoadOptions& load, Go go) {
  std::unique_ptr<ArrivalProcess> arrivals;
  if (load.rate != 0) {
    auto made = MakeArrivals(load.arrivals, load.rate, common.seed);
    if (!made.ok()) return made.status();
    arrivals = *std::move(made);
  }
  ServiceWorkloadOptions options;
  options.scenario = load.scenario;
  options.transport = common.transport;
  options.seed = common.seed;
  const std::unique_ptr<Workload> workload = MakeServiceWorkload(options);
  const RunOptions run = OptionsOf(common, load, arrivals.get());
  if (absl::Status status = workload->Prepare(run.slots); !status.ok()) return status;
  workload->SetExecution(load.execution);
  if (!go()) return ParentGone();
  RunResult result = Runner(run, *workload, client::SystemTime()).Run();
  EndProgress(common);
  return result;
}

// One of several processes: prints its result for the parent instead of a report.
int RunWorker(CommonOptions common, LoadOptions load) {
  if (!EndWithParent()) return Fail(ParentGone(), kExitNoServer);
  const WorkerShare share = ShareOf(common, load, load.worker);
  load.scenario.workers = share.workers;
  load.max_in_flight = share.max_in_flight;
  load.rate = share.rate;
  load.max_requests = share.max_requests;
  common.seed = share.seed;
  common.progress = false;
  const auto result = Run(common, load, AwaitGo);
  if (!result.ok()) return Fail(result.status(), kExitNoServer);
  TellResult(*result);
  return kExitOk;
}

absl::Status CheckProcesses(const LoadOptions& load) {
  const int slots = load.rate > 0 ? load.max_in_flight : load.scenario.workers;
  if (load.processes > slots) {
    return absl::InvalidArgumentError(absl::StrCat("--processes: got ", load.processes,
                                                   ", need at most one for each of the ", slots,
                                                   " requests in flight"));
  }
  if (load.processes > 1 && load.settle_percent > 0) {
    return absl::InvalidArgumentError(
        "--settle: with --processes each process would begin to measure at another time");
  }
  return absl::OkStatus();
}

}  // namespace

int RunLoad(const CommonOptions& common, const LoadOptions& load) {
  if (absl::Status status = CheckProcesses(load); !status.ok()) return Fail(status, kExitUsage);
  if (load.worker >= 0) return RunWorker(common, load);
  const auto server = AskServer(common);
  if (!server.ok()) return Fail(server.status(), kExitNoServer);
  const ServerAccount account(common);
  if (!account.status().ok()) return Fail(account.status(), kExitNoServer);
  nlohmann::json json = ReportHeader("attnload run", common.command, *server);

  RunReport report;
  report.scenario = load.scenario;
  report.open_loop = load.rate > 0;
  report.offered_rate = load.rate;
  report.slo_ms = load.slo_ms;
  report.processes = load.processes;
  report.slots = report.open_loop ? load.max_in_flight : load.scenario.workers;
  auto result =
      load.processes > 1 ? RunWorkers(common, load) : Run(common, load, [] { return true; });
  if (!result.ok()) return Fail(result.status(), kExitNoServer);
  report.result = *std::move(result);
  account.Finish(json);
  const bool aborted = report.result.interrupted || report.result.gave_up;
  if (load.floor && !aborted) {
    auto floor = MeasureFloor(common, load.scenario, kFloorSeconds);
    if (!floor.ok()) return Fail(floor.status(), kExitUsage);
    report.floor = *std::move(floor);
  }
  std::fputs(RunTable(report).c_str(), stdout);
  json["run"] = RunJson(report);
  if (!WriteReports(common, json)) return kExitUsage;
  return ExitCodeOf(common, report.result);
}

int RunFloor(const CommonOptions& common, const FloorOptions& options) {
  nlohmann::json json = ReportHeader("attnload floor", common.command, std::nullopt);
  json["floors"] = nlohmann::json::array();
  for (const Scenario& scenario : options.scenarios) {
    const auto floor = MeasureFloor(common, scenario, options.duration_seconds);
    if (!floor.ok()) return Fail(floor.status(), kExitUsage);
    std::fputs(FloorTable(scenario, *floor).c_str(), stdout);
    json["floors"].push_back(FloorJson(scenario, *floor));
    if (floor->run.failed() > 0) {
      return Fail(absl::InternalError(floor->run.first_failure), kExitFailures);
    }
    if (floor->run.interrupted) return kExitInterrupted;
  }
  return WriteReports(common, json) ? kExitOk : kExitUsage;
}

}  // namespace attnd::loadtest
