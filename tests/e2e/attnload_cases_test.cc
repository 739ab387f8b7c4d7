// attnload against a server whose own count is known, and against one that is killed under it.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>

#include "client/file_bytes.h"
#include "nlohmann/json.hpp"
#include "tests/support/await.h"
#include "tests/support/exposition_parser.h"
#include "tests/support/local_server.h"
#include "tests/support/run_program.h"
#include "tests/support/server_process.h"
#include "tests/support/temporary_path.h"

namespace attnd::testing {
namespace {

using Json = nlohmann::json;
using std::chrono::steady_clock;

constexpr char kScenario[] = " --scenario tokens=2,heads=1,head_dim=8,workers=8";

Json ResultIn(const std::string& report) {
  const auto file = client::ReadFileBytes(report);
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return {};
  const auto* text = reinterpret_cast<const char*>(file->data.get());
  return Json::parse(text, text + file->size, nullptr, false)["run"]["result"];
}

std::string RunAgainst(const std::string& server, const std::string& report) {
  return " run --server " + server + " --json " + report + kScenario + " --warmup 0 --no_floor ";
}

TEST(AttnloadCasesTest, TenThousandRequestsEndOnceEachAndTheServerCountsTheSame) {
  LocalServer local;
  const std::string report = TemporaryPath("ten_thousand.json");
  const ProgramResult run =
      RunProgram(ATTND_ATTNLOAD, RunAgainst(local.server->address(), report) +
                                     "--requests 10000 --duration 100 --max_failure_ratio 0");
  ASSERT_EQ(run.exit_code, 0) << run.output << run.errors;
  const Json result = ResultIn(report);
  EXPECT_EQ(result["sent"], 10'000);
  EXPECT_EQ(result["ok"], 10'000);
  const Exposition page = ParseExposition(local.server->MetricsText());
  EXPECT_EQ(page.Value("attnd_requests_total", {{"method", "Attend"}, {"code", "OK"}}), 10'000);
  EXPECT_EQ(page.Value("attnd_queue_depth"), 0);
}

TEST(AttnloadCasesTest, AfterAnInterruptTheServerHasCountedWhatWasSent) {
  LocalServer local;
  const std::string report = TemporaryPath("interrupted.json");
  const ProgramResult run =
      RunProgram("timeout --foreground --preserve-status -s INT 1",
                 ATTND_ATTNLOAD + RunAgainst(local.server->address(), report) + "--duration 60");
  ASSERT_EQ(run.exit_code, 130) << run.errors;
  EXPECT_TRUE(local.AwaitIdle());
  const Json result = ResultIn(report);
  const auto sent = result["sent"].get<double>();
  EXPECT_GT(sent, 0);
  EXPECT_EQ(result["ok"].get<double>() + result["failed"].get<double>(), sent);
  double answers = 0;
  for (const auto& family : ParseExposition(local.server->MetricsText()).families) {
    for (const auto& sample : family.samples) {
      const auto method = sample.labels.find("method");
      if (sample.name == "attnd_requests_total" && method != sample.labels.end() &&
          method->second == "Attend") {
        answers += sample.value;
      }
    }
  }
  EXPECT_EQ(answers, sent);
}

TEST(AttnloadCasesTest, AServerThatIsKilledEndsTheRunWithItsFailuresCounted) {
  ServerProcess server(ATTND_BINARY, {});
  const auto address = server.AwaitServing();
  ASSERT_TRUE(address.has_value()) << server.log();
  const std::string report = TemporaryPath("killed.json");
  steady_clock::time_point killed;
  const double idle_seconds = server.cpu_seconds();
  std::thread killer([&] {  // hundreds of answers later, however slowly attnload starts
    EXPECT_TRUE(Await([&] { return server.cpu_seconds() > idle_seconds + 0.3; }));
    server.Signal(SIGKILL);
    killed = steady_clock::now();
  });
  const ProgramResult run =
      RunProgram(ATTND_ATTNLOAD, RunAgainst(*address, report) + "--duration 60");
  const auto ended = steady_clock::now();
  killer.join();
  EXPECT_EQ(server.AwaitExit(), 128 + SIGKILL);
  EXPECT_LT(ended - killed, std::chrono::seconds(10));
  EXPECT_NE(run.exit_code, 0) << run.output;
  const Json result = ResultIn(report);
  EXPECT_GT(result["ok"], 0);
  EXPECT_GT(result["failures"]["UNAVAILABLE"], 0) << result;
  EXPECT_EQ(result["ok"].get<int>() + result["failed"].get<int>(), result["sent"].get<int>());
}

}  // namespace
}  // namespace attnd::testing
