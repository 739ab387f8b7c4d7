#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "client/attention_client.h"
#include "loadtest/commands.h"
#include "loadtest/echo_process.h"
#include "loadtest/runner.h"
#include "loadtest/workload.h"
#include "nlohmann/json.hpp"

namespace attnd::loadtest {

absl::StatusOr<FloorResult> MeasureFloor(const CommonOptions& common, const Scenario& scenario,
                                         double seconds) {
  absl::StatusOr<std::unique_ptr<EchoProcess>> echo = EchoProcess::Start(common.program, scenario);
  if (!echo.ok()) return echo.status();
  FloorResult floor;
  {
    ServiceWorkloadOptions options;
    options.scenario = scenario;
    options.transport.target = (*echo)->target();
    options.fill_cache = false;
    options.seed = common.seed;
    const std::unique_ptr<Workload> workload = MakeServiceWorkload(options);
    if (absl::Status status = workload->Prepare(scenario.workers); !status.ok()) return status;
    RunOptions run;
    run.slots = scenario.workers;
    run.warmup = Seconds(seconds / 5);
    run.duration = Seconds(seconds);
    run.timeout = Seconds(common.timeout_seconds);
    run.interrupt = common.interrupt;
    floor.run = Runner(run, *workload, client::SystemTime()).Run();
  }
  const EchoProcess::Bytes bytes = (*echo)->Stop();
  floor.request_bytes = bytes.request;
  floor.reply_bytes = bytes.reply;
  return floor;
}

absl::StatusOr<v1::GetServerInfoResponse> AskServer(const CommonOptions& common) {
  client::ClientOptions options;
  options.transport = common.transport;
  client::AttentionClient client(options);
  if (!client.transport().WaitForConnected(Seconds(common.connect_timeout_seconds))) {
    return absl::UnavailableError(absl::StrCat("no server at ", common.transport.target, " within ",
                                               common.connect_timeout_seconds, " s"));
  }
  return client.GetServerInfo({.timeout = Seconds(common.connect_timeout_seconds)});
}

absl::Status CheckReportPath(const CommonOptions& common) {
  if (common.json_path.empty()) return absl::OkStatus();
  const std::filesystem::path path(common.json_path);
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  std::error_code error;
  std::string why;
  if (std::filesystem::is_directory(path, error)) {
    why = "a folder";
  } else if (!std::filesystem::is_directory(folder, error)) {
    why = absl::StrCat("no folder ", folder.string());
  } else {
    const bool exists = access(path.c_str(), F_OK) == 0;
    const int allowed = exists ? access(path.c_str(), W_OK) : access(folder.c_str(), W_OK | X_OK);
    if (allowed != 0) why = "not permitted";
  }
  if (why.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--json: cannot write ", common.json_path, ": ", why));
}

bool WriteJson(const CommonOptions& common, const nlohmann::json& report) {
  if (common.json_path.empty()) return true;
  const absl::Status status = WriteReport(common.json_path, report);
  if (!status.ok()) {
    Fail(status, kExitUsage);
    return false;
  }
  std::printf("%s\n", common.json_path.c_str());
  return true;
}

void DrawProgress(const std::string& label, double done, std::int64_t ok, std::int64_t failed,
                  std::int64_t in_flight) {
  constexpr int kWidth = 30;
  const int filled = std::clamp(static_cast<int>(done * kWidth), 0, kWidth);
  std::fprintf(stderr, "\r%s [%s%s] %3.0f %%  %lld ok, %lld failed, %lld in flight \x1B[K",
               label.c_str(), std::string(static_cast<std::size_t>(filled), '#').c_str(),
               std::string(static_cast<std::size_t>(kWidth - filled), ' ').c_str(), done * 100,
               static_cast<long long>(ok), static_cast<long long>(failed),
               static_cast<long long>(in_flight));
  std::fflush(stderr);
}

void EndProgress(const CommonOptions& common) {
  if (common.progress) std::fprintf(stderr, "\r\x1B[K");
}

int Fail(const absl::Status& status, int exit_code) {
  std::fprintf(stderr, "attnload: %s\n", client::ErrorText(status).c_str());
  return exit_code;
}

int ExitCodeOf(const CommonOptions& common, const RunResult& result) {
  if (result.interrupted) return kExitInterrupted;
  if (result.gave_up || result.failure_ratio() > common.max_failure_ratio) return kExitFailures;
  // Nothing measured is no success.
  return result.ok > 0 ? kExitOk : kExitFailures;
}

}  // namespace attnd::loadtest
