// attnload: load and comparison of an attnd server.
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "client/flag_checks.h"
#include "loadtest/capture.h"
#include "loadtest/commands.h"
#include "loadtest/echo_process.h"

namespace attnd::loadtest {
namespace {

std::atomic<bool> interrupted{false};

// The first Ctrl-C ends the run with a partial report, the second one the process.
void OnInterrupt(int) {
  interrupted = true;
  std::signal(SIGINT, SIG_DFL);
}

struct ScenarioFlags {
  std::vector<std::string> specs;
  std::string file;
  std::vector<std::string> names;  // of the file's; none: all
};

void AddCommonFlags(CLI::App& command, CommonOptions& common, bool needs_server) {
  if (needs_server) {
    command.add_option("--server", common.transport.target, "host:port or unix:/path")
        ->capture_default_str();
    command
        .add_option("--connect_timeout", common.connect_timeout_seconds,
                    "seconds to wait for the server")
        ->capture_default_str()
        ->check(client::AboveZero());
    command
        .add_option("--max_failure_ratio", common.max_failure_ratio,
                    "exit code 1 above this share of failed requests")
        ->capture_default_str()
        ->check(CLI::Range(0.0, 1.0));
    command.add_option_function<std::string>(
        "--tenant",
        [&common](const std::string& tenant) {
          common.transport.metadata.emplace_back("attnd-tenant", tenant);
        },
        "sent as attnd-tenant");
    command.add_option("--admin", common.admin,
                       "host:port of the server's admin port: its own account of the run (kernels, "
                       "stages, batches) enters the report");
  }
  command.add_option("--timeout", common.timeout_seconds, "seconds of one request")
      ->capture_default_str()
      ->check(client::AboveZero());
  command.add_option("--seed", common.seed, "of random tensors and arrivals")
      ->capture_default_str();
  command.add_option("--json", common.json_path, "write the report to this file");
  command.add_option("--csv", common.csv_path,
                     "write a line a run, or a side of a comparison, to this file");
  command.add_flag_callback(
      "--no_progress", [&common] { common.progress = false; }, "no progress bar on standard error");
}

// Reads --scenario and --scenarios; with neither, `fallback`.
absl::StatusOr<std::vector<Scenario>> ReadAll(const ScenarioFlags& flags, const char* fallback) {
  std::vector<Scenario> scenarios;
  if (!flags.file.empty()) {
    absl::StatusOr<std::vector<Scenario>> read = ReadScenarios(flags.file);
    if (!read.ok()) return read.status();
    for (const std::string& name : flags.names) {
      const auto named = [&name](const Scenario& each) { return each.name == name; };
      if (std::none_of(read->begin(), read->end(), named)) {
        return absl::InvalidArgumentError(flags.file + ": holds no scenario '" + name + "'");
      }
    }
    for (Scenario& scenario : *read) {
      const auto& names = flags.names;
      if (!names.empty() && std::find(names.begin(), names.end(), scenario.name) == names.end()) {
        continue;
      }
      scenarios.push_back(std::move(scenario));
    }
  }
  std::vector<std::string> specs = flags.specs;
  if (specs.empty() && scenarios.empty()) specs.emplace_back(fallback);
  for (const std::string& spec : specs) {
    absl::StatusOr<Scenario> parsed = ParseScenario(spec);
    if (!parsed.ok()) return parsed.status();
    scenarios.push_back(*std::move(parsed));
  }
  for (Scenario& scenario : scenarios) {
    if (absl::Status status = ResolveCapture(scenario); !status.ok()) return status;
  }
  return scenarios;
}

void AddScenarioFlags(CLI::App& command, ScenarioFlags& flags) {
  command.add_option("--scenario", flags.specs, "key=value,... (may be repeated); keys below")
      ->take_all()
      ->allow_extra_args(false);
  command.add_option("--scenarios", flags.file, "YAML file with a list of them");
  command.add_option("--name", flags.names, "only this one of the file (may be repeated)")
      ->needs("--scenarios")
      ->allow_extra_args(false);
  command.footer(ScenarioHelp());
}

struct Flags {
  CommonOptions common;
  ScenarioFlags scenarios;
  LoadOptions load;
  ReplayOptions replay;
  FloorOptions floor;
  CompareOptions compare;
  std::string algorithm = "auto";
  bool alone = false;
  double slo_ms = 0;
};

CLI::App* AddRun(CLI::App& app, Flags& flags) {
  CLI::App* run = app.add_subcommand(
      "run",
      "one scenario: closed loop, or open loop where --rate is given; an echo of the same "
      "bytes beside it");
  AddCommonFlags(*run, flags.common, true);
  AddScenarioFlags(*run, flags.scenarios);
  LoadOptions& load = flags.load;
  run->add_option("--rate", load.rate,
                  "open loop: requests a second, sent on a plan whatever the server does "
                  "(default: the scenario's)")
      ->check(client::AboveZero())
      ->check(CLI::Range(0.0, kMaxRate));
  run->add_option("--arrivals", load.arrivals,
                  "open loop: poisson, constant or burst (default: the scenario's)")
      ->check(CLI::IsMember({"poisson", "constant", "burst"}));
  run->add_option("--max_in_flight", load.max_in_flight,
                  "open loop: requests due beyond it are counted as skipped (default: the "
                  "scenario's)")
      ->check(CLI::Range(1, 1 << 20));
  run->add_option("--warmup", load.warmup_seconds, "seconds that are not measured")
      ->capture_default_str()
      ->check(client::NotNegative());
  run->add_option("--settle", load.settle_percent,
                  "percent: warm up until the answers of four half seconds in a row differ by no "
                  "more, at most 30 s")
      ->check(client::AboveZero());
  run->add_option("--duration", load.duration_seconds, "measured seconds")
      ->capture_default_str()
      ->check(client::AboveZero());
  run->add_option("--requests", load.max_requests, "end after so many, warm-up included")
      ->check(client::AboveZero());
  run->add_option("--slo_ms", flags.slo_ms, "count answers within so many milliseconds")
      ->check(client::AboveZero());
  run->add_option("--algorithm", flags.algorithm, "auto, fused or naive")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "fused", "naive"}));
  run->add_flag("--alone", flags.alone, "never batched with other requests");
  run->add_option("--processes", load.processes,
                  "processes that share workers, rate and requests in flight: one alone may be a "
                  "limit before the server is")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  run->add_option("--worker", load.worker, "")->group("");  // set by the parent of a worker
  run->add_flag_callback(
      "--no_floor", [&load] { load.floor = false; }, "no echo measurement after the run");
  return run;
}

CLI::App* AddReplay(CLI::App& app, Flags& flags) {
  CLI::App* command = app.add_subcommand(
      "replay",
      "sessions of a trace: each makes a sequence, appends its prompt and steps through its output "
      "when it is due");
  AddCommonFlags(*command, flags.common, true);
  AddScenarioFlags(*command, flags.scenarios);
  ReplayOptions& replay = flags.replay;
  command
      ->add_option("--trace", replay.trace,
                   ".csv as Azure's LLM inference traces, .jsonl as Mooncake's")
      ->required();
  command->add_option("--speed", replay.scale.speed, "2: twice as fast as recorded")
      ->capture_default_str()
      ->check(client::AboveZero());
  command->add_option("--length_scale", replay.scale.lengths, "0.1: a tenth of the tokens")
      ->capture_default_str()
      ->check(client::AboveZero());
  command->add_option("--sessions", replay.scale.limit, "only so many from the start of the trace")
      ->check(client::AboveZero());
  command
      ->add_option("--max_in_flight", replay.max_in_flight,
                   "sessions due beyond it are counted as skipped; the next one takes the lengths")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  command
      ->add_option("--prefix_tokens", replay.prefix_tokens,
                   "keep so many tokens of prompts for sessions that begin alike and fork them "
                   "(traces with hash_ids); 0: every prompt is sent whole")
      ->capture_default_str()
      ->check(client::NotNegative());
  return command;
}

CLI::App* AddFloor(CLI::App& app, Flags& flags) {
  CLI::App* floor = app.add_subcommand(
      "floor",
      "the transport alone: an echo server in a process of its own, same bytes in and out");
  AddCommonFlags(*floor, flags.common, false);
  AddScenarioFlags(*floor, flags.scenarios);
  floor
      ->add_option_function<std::string>(
          "--server",
          [](const std::string&) {
            throw CLI::ValidationError(
                "--server", "floor asks no server: it measures against an echo of its own");
          },
          "")
      ->group("");
  floor->add_option("--duration", flags.floor.duration_seconds, "measured seconds a scenario")
      ->capture_default_str()
      ->check(client::AboveZero());
  return floor;
}

CLI::App* AddCompare(CLI::App& app, Flags& flags) {
  CLI::App* compare = app.add_subcommand(
      "compare", "fused against naive, and batching on against off, in interleaved blocks");
  AddCommonFlags(*compare, flags.common, true);
  AddScenarioFlags(*compare, flags.scenarios);
  compare->add_option("--blocks", flags.compare.blocks, "counted blocks of each side")
      ->capture_default_str()
      ->check(CLI::Range(1, 10'000));
  compare->add_option("--block_seconds", flags.compare.block_seconds, "length of one block")
      ->capture_default_str()
      ->check(client::AboveZero());
  compare->add_flag_callback(
      "--no_batching", [&flags] { flags.compare.batching = false; }, "only fused against naive");
  return compare;
}

int RunSelected(Flags& flags, const CLI::App& run, const CLI::App& replay, const CLI::App& floor) {
  const char* const fallback = replay.parsed()
                                   ? "kind=decode,heads=32,kv_heads=8,head_dim=128,type=bf16"
                                   : "kind=attend,tokens=1024,heads=8,head_dim=64,type=fp32";
  const auto scenarios = ReadAll(flags.scenarios, fallback);
  if (!scenarios.ok()) return Fail(scenarios.status(), kExitUsage);
  if (absl::Status status = CheckReportPaths(flags.common); !status.ok()) {
    return Fail(status, kExitUsage);
  }
  if (run.parsed()) {
    if (scenarios->size() != 1) {
      return Fail(absl::InvalidArgumentError("run takes one scenario; --name picks one of a file"),
                  kExitUsage);
    }
    flags.load.scenario = scenarios->front();
    if (flags.load.rate == 0) flags.load.rate = flags.load.scenario.rate;
    if (flags.load.max_in_flight == 0) {
      flags.load.max_in_flight = flags.load.scenario.max_in_flight;
    }
    if (flags.load.arrivals.empty()) flags.load.arrivals = flags.load.scenario.arrivals;
    if (flags.slo_ms > 0) flags.load.slo_ms = flags.slo_ms;
    flags.load.execution.set_alone(flags.alone);
    flags.load.execution.set_algorithm(flags.algorithm == "naive"   ? v1::ALGORITHM_NAIVE
                                       : flags.algorithm == "fused" ? v1::ALGORITHM_FUSED
                                                                    : v1::ALGORITHM_AUTO);
    return RunLoad(flags.common, flags.load);
  }
  if (replay.parsed()) {
    if (scenarios->size() != 1) {
      return Fail(absl::InvalidArgumentError("replay takes one scenario"), kExitUsage);
    }
    flags.replay.scenario = scenarios->front();
    return RunReplay(flags.common, flags.replay);
  }
  if (floor.parsed()) {
    flags.floor.scenarios = *scenarios;
    return RunFloor(flags.common, flags.floor);
  }
  flags.compare.scenarios = *scenarios;
  return RunCompare(flags.common, flags.compare);
}

int Main(int argc, char** argv) {
  CLI::App app{"attnload: load and comparison of an attnd server", "attnload"};
  app.set_version_flag("--version", "attnload " ATTND_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 measured; 1 more failures than --max_failure_ratio; 2 wrong flags or "
      "files; 3 no server, or it refused the preparation; 130 interrupted.");
  Flags flags;
  flags.common.progress = isatty(STDERR_FILENO) != 0;
  flags.common.command.assign(argv, argv + argc);
  flags.common.interrupt = &interrupted;
  // By link, not by argv: the file may stand anywhere on the search path.
  flags.common.program = "/proc/self/exe";
  const CLI::App* run = AddRun(app, flags);
  const CLI::App* replay = AddReplay(app, flags);
  const CLI::App* floor = AddFloor(app, flags);
  AddCompare(app, flags);
  // What EchoProcess starts; of no use to people.
  CLI::App* echo = app.add_subcommand("echo", "")->group("");
  AddScenarioFlags(*echo, flags.scenarios);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return client::ReportParseEnd(app, error) ? kExitOk : kExitUsage;
  }
  if (echo->parsed()) {
    // Ctrl-C reaches the whole foreground group: the parent ends this process when it has reported.
    std::signal(SIGINT, SIG_IGN);
    const auto scenario =
        ParseScenario(flags.scenarios.specs.empty() ? "" : flags.scenarios.specs[0]);
    return scenario.ok() ? ServeEcho(*scenario) : Fail(scenario.status(), kExitUsage);
  }
  // The parent of a worker tells it by SIGTERM; a second signal would end it without its result.
  std::signal(SIGINT, flags.load.worker >= 0 ? SIG_IGN : OnInterrupt);
  std::signal(SIGTERM, OnInterrupt);
  return RunSelected(flags, *run, *replay, *floor);
}

}  // namespace
}  // namespace attnd::loadtest

int main(int argc, char** argv) { return attnd::loadtest::Main(argc, argv); }
