#include <cstdio>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "loadtest/commands.h"
#include "loadtest/runner.h"
#include "nlohmann/json.hpp"

namespace attnd::loadtest {
namespace {

// A side whose requests all fail for so long is refused, not slow.
constexpr auto kGiveUp = std::chrono::seconds(1);

// A side of the comparison and how its requests are executed.
struct Variant {
  Side* side;
  v1::ExecutionOptions execution;
};

v1::ExecutionOptions Execution(v1::Algorithm algorithm, bool alone) {
  v1::ExecutionOptions execution;
  execution.set_algorithm(algorithm);
  execution.set_alone(alone);
  return execution;
}

// One block of one variant: closed loop, at least one operation a worker.
RunResult RunBlock(const CommonOptions& common, const CompareOptions& compare,
                   const Scenario& scenario, Workload& workload, const Variant& variant) {
  workload.SetExecution(variant.execution);
  RunOptions run;
  run.slots = scenario.workers;
  run.duration = Seconds(compare.block_seconds);
  run.min_requests = scenario.workers;
  run.give_up = kGiveUp;
  run.timeout = Seconds(common.timeout_seconds);
  run.interrupt = common.interrupt;
  return Runner(run, workload, client::SystemTime()).Run();
}

// Blocks in turn; the order rotates, so that no variant always follows the same one. Block 0 warms
// up and is not counted. False: interrupted, or a variant whose requests all fail.
bool RunBlocks(const CommonOptions& common, const CompareOptions& compare, const Scenario& scenario,
               Workload& workload, std::vector<Variant>& variants) {
  for (int block = 0; block <= compare.blocks; ++block) {
    for (std::size_t i = 0; i < variants.size(); ++i) {
      const Variant& variant = variants[(i + static_cast<std::size_t>(block)) % variants.size()];
      const RunResult result = RunBlock(common, compare, scenario, workload, variant);
      if (block > 0 || result.ok == 0) {
        variant.side->run.Merge(result);
        variant.side->block_rates.push_back(result.tokens_per_second());
      }
      if (result.interrupted || result.ok == 0) return false;
      if (!common.progress) continue;
      const double steps = static_cast<double>(variants.size()) * (compare.blocks + 1);
      const double done = (static_cast<double>(block) * static_cast<double>(variants.size()) +
                           static_cast<double>(i) + 1) /
                          steps;
      DrawProgress(scenario.name, done, result.ok, result.failed(), scenario.workers);
    }
  }
  return true;
}

// Why the scenario's figures must not be used; OK where they may.
absl::Status Verdict(const CommonOptions& common, const ScenarioComparison& comparison) {
  const std::pair<const char*, const Side*> sides[] = {
      {"fused", &comparison.fused},
      {"naive", &comparison.naive},
      {"fused alone", comparison.alone ? &*comparison.alone : nullptr},
      {"naive alone", comparison.naive_alone ? &*comparison.naive_alone : nullptr}};
  bool complete = true;
  for (const auto& [name, side] : sides) {
    if (side == nullptr) continue;
    if (side->run.failure_ratio() > common.max_failure_ratio) {
      return absl::UnknownError(absl::StrCat(comparison.scenario.name, ", ", name, ": ",
                                             side->run.failed(), " of ", side->run.sent,
                                             " requests failed; first: ", side->run.first_failure));
    }
    complete = complete && side->run.ok > 0;
  }
  if (complete) return absl::OkStatus();
  return absl::UnknownError(
      absl::StrCat(comparison.scenario.name, ": not every side was measured"));
}

absl::StatusOr<ScenarioComparison> CompareScenario(const CommonOptions& common,
                                                   const CompareOptions& compare,
                                                   const Scenario& scenario) {
  ScenarioComparison comparison;
  comparison.scenario = scenario;
  auto floor = MeasureFloor(common, scenario, compare.floor_seconds);
  if (!floor.ok()) return floor.status();
  comparison.floor = *std::move(floor);

  ServiceWorkloadOptions options;
  options.scenario = scenario;
  options.transport = common.transport;
  options.seed = common.seed;
  const std::unique_ptr<Workload> workload = MakeServiceWorkload(options);
  if (absl::Status status = workload->Prepare(scenario.workers); !status.ok()) return status;

  std::vector<Variant> variants{{&comparison.fused, Execution(v1::ALGORITHM_FUSED, false)},
                                {&comparison.naive, Execution(v1::ALGORITHM_NAIVE, false)}};
  if (compare.batching && scenario.workers > 1) {
    variants.push_back({&comparison.alone.emplace(), Execution(v1::ALGORITHM_FUSED, true)});
    variants.push_back({&comparison.naive_alone.emplace(), Execution(v1::ALGORITHM_NAIVE, true)});
  }
  RunBlocks(common, compare, scenario, *workload, variants);
  comparison.fused_over_naive =
      PairedRatio(comparison.fused.block_rates, comparison.naive.block_rates, common.seed);
  if (comparison.alone) {
    comparison.batching_on_over_off =
        PairedRatio(comparison.fused.block_rates, comparison.alone->block_rates, common.seed);
    comparison.naive_batching_on_over_off =
        PairedRatio(comparison.naive.block_rates, comparison.naive_alone->block_rates, common.seed);
  }
  return comparison;
}

}  // namespace

int RunCompare(const CommonOptions& common, const CompareOptions& compare) {
  const auto server = AskServer(common);
  if (!server.ok()) return Fail(server.status(), kExitNoServer);
  const ServerAccount account(common);
  if (!account.status().ok()) return Fail(account.status(), kExitNoServer);
  nlohmann::json json = ReportHeader("attnload compare", common.command, *server);
  json["blocks"] = compare.blocks;
  json["block_seconds"] = compare.block_seconds;
  json["scenarios"] = nlohmann::json::array();
  std::vector<ScenarioComparison> comparisons;
  int exit_code = kExitOk;
  for (const Scenario& scenario : compare.scenarios) {
    auto comparison = CompareScenario(common, compare, scenario);
    EndProgress(common);
    if (!comparison.ok()) return Fail(comparison.status(), kExitNoServer);
    if (common.interrupt != nullptr && common.interrupt->load()) {
      exit_code = kExitInterrupted;
      break;
    }
    json["scenarios"].push_back(ComparisonJson(*comparison));
    if (absl::Status verdict = Verdict(common, *comparison); !verdict.ok()) {
      exit_code = Fail(verdict, kExitFailures);
      json["scenarios"].back()["error"] = std::string(verdict.message());
    }
    comparisons.push_back(*std::move(comparison));
  }
  if (exit_code == kExitInterrupted) std::puts("INTERRUPTED: a partial report");
  std::fputs(ComparisonTable(comparisons).c_str(), stdout);
  json["interrupted"] = exit_code == kExitInterrupted;
  account.Finish(json);
  return WriteReports(common, json) ? exit_code : kExitUsage;
}

}  // namespace attnd::loadtest
