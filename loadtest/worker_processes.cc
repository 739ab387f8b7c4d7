#include "loadtest/worker_processes.h"

#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "loadtest/child_process.h"
#include "nlohmann/json.hpp"

namespace attnd::loadtest {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::milliseconds kPoll{50};
constexpr char kReady[] = "ready";
constexpr char kGo[] = "go";
// Plans of arrivals must not be the same in every process.
constexpr std::uint64_t kSeedStep = 7919;

// The i-th of n parts of `whole`; parts differ by at most one.
template <typename Integer>
Integer Part(Integer whole, int count, int index) {
  return whole / count + (index < whole % count ? 1 : 0);
}

Json RecorderJson(const LatencyRecorder& recorder) {
  const LatencyRecorder::State state = recorder.state();
  return {state.count, state.sum, state.min, state.max, state.bins};
}

void ReadRecorder(const Json& json, LatencyRecorder& recorder) {
  LatencyRecorder::State state;
  json.at(0).get_to(state.count);
  json.at(1).get_to(state.sum);
  json.at(2).get_to(state.min);
  json.at(3).get_to(state.max);
  json.at(4).get_to(state.bins);
  recorder = LatencyRecorder(state);
}

struct NamedRecorder {
  const char* name;
  LatencyRecorder RunResult::*recorder;
};
constexpr NamedRecorder kRecorders[] = {{"latency", &RunResult::latency},
                                        {"service_time", &RunResult::service_time},
                                        {"schedule_lag", &RunResult::schedule_lag},
                                        {"kernel_time", &RunResult::kernel_time},
                                        {"queue_time", &RunResult::queue_time}};

struct NamedCount {
  const char* name;
  std::int64_t RunResult::*count;
};
constexpr NamedCount kCounts[] = {
    {"sent", &RunResult::sent},       {"ok", &RunResult::ok},
    {"skipped", &RunResult::skipped}, {"warmup_sent", &RunResult::warmup_sent},
    {"tokens", &RunResult::tokens},   {"batch_requests_sum", &RunResult::batch_requests_sum}};

// Waits for every line at once, and passes an interrupt on.
std::vector<std::string> ReadLines(const std::vector<std::unique_ptr<ChildProcess>>& children,
                                   const std::atomic<bool>* interrupt) {
  std::vector<std::future<std::string>> lines;
  for (const auto& child : children) {
    lines.push_back(std::async(std::launch::async, [&child] { return child->ReadLine(); }));
  }
  bool passed_on = false;
  for (auto& line : lines) {
    while (line.wait_for(kPoll) != std::future_status::ready) {
      if (passed_on || interrupt == nullptr || !interrupt->load()) continue;
      passed_on = true;
      for (const auto& child : children) child->Terminate();
    }
  }
  std::vector<std::string> read;
  for (auto& line : lines) read.push_back(line.get());
  return read;
}

}  // namespace

WorkerShare ShareOf(const CommonOptions& common, const LoadOptions& load, int worker) {
  const int count = load.processes;
  return {Part(load.scenario.workers, count, worker), Part(load.max_in_flight, count, worker),
          load.rate / count, Part(load.max_requests, count, worker),
          common.seed + kSeedStep * static_cast<std::uint64_t>(worker)};
}

absl::StatusOr<RunResult> RunWorkers(const CommonOptions& common, const LoadOptions& load) {
  std::vector<std::unique_ptr<ChildProcess>> children;
  for (int worker = 0; worker < load.processes; ++worker) {
    std::vector<std::string> arguments = common.command;
    arguments.front() = common.program;
    arguments.insert(arguments.end(), {"--worker", absl::StrCat(worker)});
    auto child = ChildProcess::Start(arguments);
    if (!child.ok()) return child.status();
    children.push_back(*std::move(child));
  }
  for (const std::string& line : ReadLines(children, common.interrupt)) {
    // It has said why on standard error.
    if (line != kReady) return absl::UnavailableError("a worker process could not prepare");
  }
  for (const auto& child : children) child->WriteLine(kGo);
  RunResult merged;
  bool first = true;
  for (const std::string& line : ReadLines(children, common.interrupt)) {
    auto result = ResultFromText(line);
    if (!result.ok()) return result.status();
    if (std::exchange(first, false)) {
      merged = *std::move(result);
      continue;
    }
    // At the same time, not one after the other.
    const auto measured = std::max(merged.measured, result->measured);
    merged.Merge(*result);
    merged.measured = measured;
  }
  return merged;
}

bool EndWithParent() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // It may have ended before: nobody holds the other end of the input any more.
  pollfd input{STDIN_FILENO, 0, 0};
  return poll(&input, 1, 0) == 0;
}

bool AwaitGo() {
  std::puts(kReady);
  std::fflush(stdout);
  std::string line;
  for (int letter = 0; (letter = std::getchar()) != EOF && letter != '\n';) {
    line.push_back(static_cast<char>(letter));
  }
  return line == kGo;
}

void TellResult(const RunResult& result) {
  std::puts(ResultToText(result).c_str());
  std::fflush(stdout);
}

std::string ResultToText(const RunResult& result) {
  Json json = {{"failures", result.failures},          {"kernels", result.kernels},
               {"measured", result.measured.count()},  {"warmup", result.warmup.count()},
               {"interrupted", result.interrupted},    {"gave_up", result.gave_up},
               {"first_failure", result.first_failure}};
  for (const NamedCount& each : kCounts) json[each.name] = result.*each.count;
  for (const NamedRecorder& each : kRecorders) {
    json[each.name] = RecorderJson(result.*each.recorder);
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<RunResult> ResultFromText(const std::string& text) {
  RunResult result;
  // The JSON library reports by exception; none leaves this function.
  try {
    const Json json = Json::parse(text);
    json.at("failures").get_to(result.failures);
    json.at("kernels").get_to(result.kernels);
    result.measured = RunResult::Duration(json.at("measured").get<std::int64_t>());
    result.warmup = RunResult::Duration(json.at("warmup").get<std::int64_t>());
    json.at("interrupted").get_to(result.interrupted);
    json.at("gave_up").get_to(result.gave_up);
    json.at("first_failure").get_to(result.first_failure);
    for (const NamedCount& each : kCounts) json.at(each.name).get_to(result.*each.count);
    for (const NamedRecorder& each : kRecorders) {
      ReadRecorder(json.at(each.name), result.*each.recorder);
    }
  } catch (const Json::exception& error) {
    return absl::UnavailableError(
        absl::StrCat("a worker process ended without its result: ", error.what()));
  }
  return result;
}

}  // namespace attnd::loadtest
