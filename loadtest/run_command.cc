#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "loadtest/commands.h"
#include "loadtest/runner.h"
#include "nlohmann/json.hpp"

namespace attnd::loadtest {
namespace {

constexpr double kFloorSeconds = 2;

RunOptions OptionsOf(const CommonOptions& common, const LoadOptions& load,
                     ArrivalProcess* arrivals) {
  RunOptions run;
  run.slots = arrivals != nullptr ? load.max_in_flight : load.scenario.workers;
  run.arrivals = arrivals;
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

}  // namespace

int RunLoad(const CommonOptions& common, const LoadOptions& load) {
  std::unique_ptr<ArrivalProcess> arrivals;
  if (load.rate != 0) {
    auto made = MakeArrivals(load.arrivals, load.rate, common.seed);
    if (!made.ok()) return Fail(made.status(), kExitUsage);
    arrivals = *std::move(made);
  }
  const auto server = AskServer(common);
  if (!server.ok()) return Fail(server.status(), kExitNoServer);
  const ServerAccount account(common);
  if (!account.status().ok()) return Fail(account.status(), kExitNoServer);
  nlohmann::json json = ReportHeader("attnload run", common.command, *server);

  RunReport report;
  report.scenario = load.scenario;
  report.open_loop = arrivals != nullptr;
  report.offered_rate = load.rate;
  report.slo_ms = load.slo_ms;
  {
    ServiceWorkloadOptions options;
    options.scenario = load.scenario;
    options.transport = common.transport;
    options.seed = common.seed;
    const std::unique_ptr<Workload> workload = MakeServiceWorkload(options);
    const RunOptions run = OptionsOf(common, load, arrivals.get());
    report.slots = run.slots;
    if (absl::Status status = workload->Prepare(run.slots); !status.ok()) {
      return Fail(status, kExitNoServer);
    }
    workload->SetExecution(load.execution);
    report.result = Runner(run, *workload, client::SystemTime()).Run();
    EndProgress(common);
    account.Finish(json);
  }
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
