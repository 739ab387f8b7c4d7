#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/attention_client.h"
#include "client/file_bytes.h"
#include "loadtest/commands.h"
#include "loadtest/echo_process.h"
#include "loadtest/runner.h"
#include "loadtest/server_work.h"
#include "loadtest/workload.h"
#include "nlohmann/json.hpp"

namespace attnd::loadtest {
namespace {

// Empty: it can be written.
std::string WhyNotWritable(const std::filesystem::path& path) {
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return "a folder";
  if (!std::filesystem::is_directory(folder, error)) {
    return absl::StrCat("no folder ", folder.string());
  }
  const bool exists = access(path.c_str(), F_OK) == 0;
  const int allowed = exists ? access(path.c_str(), W_OK) : access(folder.c_str(), W_OK | X_OK);
  return allowed == 0 ? "" : "not permitted";
}

}  // namespace

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
    // However long it takes to connect: the first of each worker is of the warm-up.
    run.min_requests = std::int64_t{2} * scenario.workers;
    run.timeout = Seconds(common.timeout_seconds);
    run.interrupt = common.interrupt;
    floor.run = Runner(run, *workload, client::SystemTime()).Run();
  }
  if (floor.run.ok == 0 && !floor.run.interrupted) {
    return absl::UnavailableError(
        absl::StrCat("the echo answered none of ", floor.run.sent, " requests in ", seconds, " s"));
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

absl::Status CheckReportPaths(const CommonOptions& common) {
  for (const auto& [flag, path] :
       {std::pair("--json", common.json_path), std::pair("--csv", common.csv_path)}) {
    if (path.empty()) continue;
    if (const std::string why = WhyNotWritable(path); !why.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(flag, ": cannot write ", path, ": ", why));
    }
  }
  return absl::OkStatus();
}

bool WriteReports(const CommonOptions& common, const nlohmann::json& report) {
  const auto written = [](const std::string& path, const absl::Status& status) {
    if (!status.ok()) return Fail(status, kExitUsage) == kExitOk;
    std::printf("%s\n", path.c_str());
    return true;
  };
  if (!common.json_path.empty() &&
      !written(common.json_path, WriteReport(common.json_path, report))) {
    return false;
  }
  if (common.csv_path.empty()) return true;
  const std::string csv = ReportCsv(report);
  const std::array<std::string_view, 1> parts{csv};
  return written(common.csv_path, client::WriteFileBytes(common.csv_path, parts));
}

ServerAccount::ServerAccount(const CommonOptions& common) : admin_(common.admin) {
  if (admin_.empty()) return;
  absl::StatusOr<nlohmann::json> before = ReadServerStatus(admin_);
  status_ = before.status();
  if (before.ok()) before_ = std::make_shared<const nlohmann::json>(*std::move(before));
}

void ServerAccount::Finish(nlohmann::json& report) const {
  if (before_ == nullptr) return;
  const auto after = ReadServerStatus(admin_);
  auto work = after.ok() ? ServerWork(*before_, *after) : after.status();
  if (work.ok()) {
    report["server_work"] = *std::move(work);
  } else {
    // The run stands; its report says what is missing.
    Fail(work.status(), kExitNoServer);
  }
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
