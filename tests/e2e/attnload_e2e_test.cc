// attnload against the real server in this process: the library's commands and the binary.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "client/file_bytes.h"
#include "nlohmann/json.hpp"
#include "tests/support/exposition_parser.h"
#include "tests/support/local_server.h"
#include "tests/support/run_program.h"

namespace attnd::loadtest {
namespace {

using Json = nlohmann::json;

class AttnloadE2eTest : public ::testing::Test {
 protected:
  // With --server and --json; the report of a run that wrote one.
  ProgramResult Run(const std::string& command, const std::string& arguments) {
    return RunProgram(ATTND_ATTNLOAD, command + " --server " + local_.server->address() +
                                          " --json " + report_ + " " + arguments);
  }
  Json Report() {
    const auto file = client::ReadFileBytes(report_);
    EXPECT_TRUE(file.ok()) << file.status();
    if (!file.ok()) return {};
    const auto* text = reinterpret_cast<const char*>(file->data.get());
    return Json::parse(text, text + file->size, nullptr, false);
  }

  const std::string report_ = TemporaryPath("report.json");
  attnd::testing::LocalServer local_;
};

TEST_F(AttnloadE2eTest, AClosedLoopOfAttendIsMeasuredBesideItsFloor) {
  const ProgramResult result =
      Run("run", "--scenario tokens=64,heads=2,head_dim=32,workers=2 --warmup 0.1 --duration 0.5");
  ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
  const Json run = Report()["run"];
  EXPECT_GT(run["result"]["ok"].get<int>(), 0);
  EXPECT_EQ(run["result"]["ok"], run["result"]["sent"]);
  EXPECT_GT(run["result"]["kernel_time"]["p50_us"].get<double>(), 0);
  EXPECT_GT(run["floor"]["latency"]["p50_us"].get<double>(), 0);
  EXPECT_NE(result.output.find(report_ + "\n"), std::string::npos)
      << "the report's path is printed";
}

TEST_F(AttnloadE2eTest, AReportThatCannotBeWrittenIsToldBeforeTheRun) {
  for (const std::string& path :
       {std::string("/no/such/folder/report.json"), std::string("/proc")}) {
    const ProgramResult result =
        RunProgram(ATTND_ATTNLOAD,
                   "run --server " + local_.server->address() + " --duration 60 --json " + path);
    EXPECT_EQ(result.exit_code, 2) << result.output;
    EXPECT_NE(result.errors.find("--json: cannot write " + path), std::string::npos)
        << result.errors;
  }
  EXPECT_EQ(local_.backend.batches(), 0);
}

TEST_F(AttnloadE2eTest, TheServersOwnAccountStandsInTheReport) {
  const std::string csv = TemporaryPath("report.csv");
  const ProgramResult result =
      Run("run",
          "--scenario kind=decode,heads=2,head_dim=32,prompt=16,workers=2 --warmup 0 "
          "--requests 50 --no_floor --csv " +
              csv + " --admin 127.0.0.1:" + std::to_string(local_.server->admin_port()));
  ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
  const Json work = Report()["server_work"];
  double launches = 0;
  for (const Json& kernel : work["kernels"]) {
    if (kernel["flops"].get<double>() > 0) launches += kernel["launches"].get<double>();
  }
  EXPECT_GE(launches, 25) << work << ": one launch for at most two steps";
  // Steps, and the prompts of two sequences.
  EXPECT_GE(work["stages"]["queue"]["count"], 50);
  const auto lines = client::ReadFileBytes(csv);
  ASSERT_TRUE(lines.ok()) << lines.status();
  const std::string text(reinterpret_cast<const char*>(lines->data.get()),
                         static_cast<std::size_t>(lines->size));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;

  EXPECT_EQ(Run("run", "--admin 127.0.0.1:1 --requests 1").exit_code, 3);
}

TEST_F(AttnloadE2eTest, SeveralProcessesShareALoad) {
  const std::string scenario =
      " --warmup 0 --no_floor --scenario kind=decode,heads=2,head_dim=32,prompt=16,workers=5,"
      "mode=stream";
  ASSERT_EQ(Run("run", "--processes 3 --requests 100 --duration 20" + scenario).exit_code, 0);
  Json run = Report()["run"];
  EXPECT_EQ(run["result"]["ok"], 100) << run["result"];
  EXPECT_EQ(run["result"]["latency"]["count"], 100);
  EXPECT_EQ(run["processes"], 3);
  EXPECT_EQ(run["slots"], 5);

  ASSERT_EQ(Run("run",
                "--processes 2 --rate 100 --arrivals constant --max_in_flight 8 "
                "--duration 1" +
                    scenario)
                .exit_code,
            0);
  run = Report()["run"];
  EXPECT_EQ(run["result"]["sent"].get<int>() + run["result"]["skipped"].get<int>(), 100);
  EXPECT_EQ(run["offered_requests_per_second"], 100);
  EXPECT_TRUE(local_.AwaitIdle());

  EXPECT_EQ(Run("run", "--processes 6" + scenario).exit_code, 2) << "more than requests in flight";
  EXPECT_EQ(Run("run", "--processes 2 --settle 5" + scenario).exit_code, 2);
}

TEST_F(AttnloadE2eTest, AnInterruptEndsEveryProcess) {
  const ProgramResult result =
      RunProgram("timeout --foreground --preserve-status -s INT 1.5",
                 std::string(ATTND_ATTNLOAD) + " run --server " + local_.server->address() +
                     " --scenario tokens=16,heads=1,head_dim=8,workers=2 --processes 2 --warmup 0 "
                     "--duration 60 --no_floor --json " +
                     report_);
  EXPECT_EQ(result.exit_code, 130) << result.errors;
  EXPECT_EQ(Report()["run"]["result"]["interrupted"], true);
  EXPECT_TRUE(local_.AwaitIdle());
}

TEST_F(AttnloadE2eTest, AScenarioOfAFileSaysHowItIsSent) {
  const std::string file = TemporaryPath("scenarios.yaml");
  std::ofstream(file) << "scenarios:\n"
                         "  - {name: one, tokens: 8, heads: 1}\n"
                         "  - {name: two, tokens: 8, heads: 1, rate: 100, arrivals: burst}\n";
  ASSERT_EQ(Run("run", "--scenarios " + file + " --name two --duration 0.2 --warmup 0 --no_floor")
                .exit_code,
            0);
  EXPECT_EQ(Report()["run"]["loop"], "open");
  EXPECT_EQ(Report()["run"]["offered_requests_per_second"], 100);
  EXPECT_EQ(Run("run", "--scenarios " + file).exit_code, 2) << "two scenarios, no name";
  EXPECT_EQ(Run("run", "--scenarios " + file + " --name three").exit_code, 2);
}

TEST_F(AttnloadE2eTest, AnOpenLoopOfDecodeStreamsKeepsItsRate) {
  const ProgramResult result =
      Run("run",
          "--rate 200 --arrivals constant --max_in_flight 16 --warmup 0 --duration 1 --no_floor "
          "--slo_ms 1000 --scenario "
          "kind=decode,heads=2,head_dim=32,prompt=16,steps=8,mode=stream,connections=2");
  ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
  const Json run = Report()["run"];
  EXPECT_EQ(run["result"]["sent"].get<int>() + run["result"]["skipped"].get<int>(), 200);
  EXPECT_EQ(run["result"]["failed"], 0);
  EXPECT_GT(run["within_slo_ratio"].get<double>(), 0);
}

TEST_F(AttnloadE2eTest, EveryPathOfTheWorkloadsIsServed) {
  for (const char* scenario :
       {"kind=decode,type=bf16,heads=4,kv_heads=2,head_dim=64,prompt=100,steps=4,layers=2,workers="
        "3",
        "kind=decode,type=fp16,heads=4,kv_heads=1,head_dim=80,prompt=3,sequences=3,workers=2",
        "kind=decode,heads=2,head_dim=32,prompt=300,window=64,soft_cap=20,mode=stream",
        "kind=decode,heads=4,head_dim=32,prompt=50,steps=13,step_tokens=5,accepted=3,layers=2",
        "kind=decode,heads=4,head_dim=32,prompt=0,steps=12,step_tokens=4,mode=stream",
        "kind=attend,type=bf16,tokens=33,kv_tokens=65,sequences=3,heads=4,kv_heads=2,causal=false",
        "kind=attend,capture=" ATTND_CAPTURE ",prefix=layers.3.,causal=false"}) {
    const ProgramResult result = Run("run", std::string("--requests 60 --warmup 0 --no_floor ") +
                                                "--max_failure_ratio 0 --scenario " + scenario);
    EXPECT_EQ(result.exit_code, 0) << scenario << "\n" << result.output << result.errors;
    EXPECT_EQ(Report()["run"]["result"]["ok"], 60) << scenario;
  }
  EXPECT_TRUE(local_.AwaitIdle());
}

TEST_F(AttnloadE2eTest, BothKindsOfTracesAreReplayed) {
  for (const char* trace : {"azure_hand_made.csv", "mooncake_hand_made.jsonl"}) {
    const ProgramResult result =
        Run("replay", std::string("--scenario kind=decode,heads=4,kv_heads=2,head_dim=32,layers=2 "
                                  "--speed 2 --trace " ATTND_TRACES "/") +
                          trace);
    ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
    const Json run = Report()["run"];
    const auto sessions = run["replay"]["sessions"].get<int>();
    EXPECT_EQ(run["result"]["ok"], sessions) << trace;
    EXPECT_EQ(run["replay"]["first_token"]["count"], sessions) << trace;
    EXPECT_GT(run["replay"]["step"]["count"].get<int>(), sessions) << trace;
    EXPECT_NE(result.output.find("each step"), std::string::npos) << result.output;
  }
  EXPECT_EQ(Run("replay", "--trace /nonexistent.csv").exit_code, 2);
}

TEST_F(AttnloadE2eTest, CallsOfAReplayAreWhatTheServerCounts) {
  ASSERT_EQ(Run("replay",
                "--scenario kind=decode,heads=4,kv_heads=2,head_dim=32,layers=2 --length_scale 0.1 "
                "--speed 4 --trace " ATTND_TRACES "/mooncake_shared_prefix.jsonl")
                .exit_code,
            0);
  const Json calls = Report()["run"]["replay"]["calls"];
  ASSERT_EQ(calls.size(), 4U) << calls;
  const auto page = attnd::testing::ParseExposition(local_.server->MetricsText());
  for (const auto& [method, codes] : calls.items()) {
    EXPECT_EQ(codes.size(), 1U) << method << codes;
    EXPECT_EQ(page.Value("attnd_requests_total", {{"method", method}, {"code", "OK"}}),
              codes["OK"].get<double>())
        << method;
  }
  const double made =
      calls["CreateSequence"]["OK"].get<double>() + calls["ForkSequence"]["OK"].get<double>();
  EXPECT_EQ(page.Value("attnd_sequences_ended_total", {{"reason", "deleted"}}), made)
      << "those that were kept for their prompts, too";
}

// Prompts of a tenth of their length: blocks of 51 tokens. The second session shares two of them
// with the first, the third its first 204 tokens, all but one, with the second.
TEST_F(AttnloadE2eTest, PromptsThatBeginAlikeAreForked) {
  const std::string replay =
      "--scenario kind=decode,heads=4,kv_heads=2,head_dim=32,layers=2 --length_scale 0.1 --speed 4 "
      "--trace " ATTND_TRACES "/mooncake_shared_prefix.jsonl";
  ASSERT_EQ(Run("replay", replay).exit_code, 0);
  const Json run = Report()["run"];
  EXPECT_EQ(run["result"]["ok"], 4);
  EXPECT_EQ(run["replay"]["prompt_tokens"], 130 + 210 + 205 + 90);
  EXPECT_EQ(run["replay"]["forked_tokens"], 2 * 51 + 4 * 51);
  EXPECT_TRUE(local_.AwaitIdle());
  EXPECT_EQ(local_.server->GetSnapshot().sequences_idle, 0) << "kept sequences are deleted";

  ASSERT_EQ(Run("replay", replay + " --prefix_tokens 0").exit_code, 0);
  EXPECT_EQ(Report()["run"]["replay"]["forked_tokens"], 0);
}

TEST_F(AttnloadE2eTest, CompareRunsFusedNaiveAndAlone) {
  const ProgramResult result =
      Run("compare",
          "--blocks 3 --block_seconds 0.1 "
          "--scenario name=prefill,tokens=128,heads=2,head_dim=64 "
          "--scenario name=steps,kind=decode,heads=4,head_dim=64,prompt=256,workers=4");
  ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
  const Json report = Report();
  ASSERT_EQ(report["scenarios"].size(), 2U);
  for (const Json& scenario : report["scenarios"]) {
    for (const char* key : {"fused_tokens_per_second", "naive_tokens_per_second",
                            "fused_over_naive", "floor_p50_us"}) {
      EXPECT_GT(scenario[key].get<double>(), 0) << key;
    }
    const std::string fused = scenario["fused"]["kernels"].dump();
    const std::string naive = scenario["naive"]["kernels"].dump();
    EXPECT_NE(naive.find("naive"), std::string::npos) << naive;
    EXPECT_EQ(fused.find("naive"), std::string::npos) << fused;
  }
  const Json& steps = report["scenarios"][1];
  EXPECT_GT(steps["batching_on_over_off"].get<double>(), 0);
  EXPECT_EQ(steps["alone"]["mean_batch_requests"], 1.0) << "alone is never batched";
  EXPECT_EQ(steps["naive_alone"]["mean_batch_requests"], 1.0);
  EXPECT_GT(steps["naive_batching_on_over_off_interval"]["median"].get<double>(), 0);
  EXPECT_FALSE(report["server"]["devices"].empty());
}

TEST_F(AttnloadE2eTest, FloorNeedsNoServer) {
  const ProgramResult result =
      RunProgram(ATTND_ATTNLOAD,
                 "floor --duration 0.3 --scenario kind=decode,heads=32,kv_heads=8,"
                 "head_dim=128,type=bf16,workers=1 --json " +
                     report_);
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  const Json floor = Report()["floors"][0];
  // q, k and v in, o out, and little else.
  EXPECT_NEAR(floor["request_bytes"].get<double>(), (32 + 2 * 8) * 128 * 2, 200);
  EXPECT_NEAR(floor["reply_bytes"].get<double>(), 32 * 128 * 2, 200);
}

TEST_F(AttnloadE2eTest, AnInterruptPrintsAPartialReport) {
  const std::string pid_file = TemporaryPath("interrupted.pid");
  auto run_ends = std::async(std::launch::async, [&] {
    return RunProgram("echo $$ >" + pid_file + "; exec " + ATTND_ATTNLOAD,
                      "run --server " + local_.server->address() +
                          " --scenario tokens=16,heads=1,head_dim=8,workers=1 --warmup 0 "
                          "--duration 60 --no_floor --json " +
                          report_);
  });
  // Not by the clock: a busy machine may take a second to start it. One worker has had the answer
  // before it asks again.
  while (local_.backend.batches() < 10 &&
         run_ends.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
  }
  pid_t pid = 0;
  ASSERT_TRUE(std::ifstream(pid_file) >> pid);
  kill(pid, SIGINT);
  const ProgramResult result = run_ends.get();
  EXPECT_EQ(result.exit_code, 130) << result.errors;
  EXPECT_NE(result.output.find("INTERRUPTED"), std::string::npos);
  const Json run = Report()["run"]["result"];
  EXPECT_EQ(run["interrupted"], true);
  EXPECT_GT(run["ok"].get<int>(), 0);
  EXPECT_EQ(run["ok"].get<int>() + run["failed"].get<int>(), run["sent"].get<int>());
}

TEST_F(AttnloadE2eTest, TimesBeyondAllMeasureAreCut) {
  EXPECT_EQ(Run("run",
                "--scenario tokens=16,heads=1,head_dim=8 --requests 5 --no_floor "
                "--warmup 0 --duration 1e300 --timeout 1e300 --connect_timeout 1e300")
                .exit_code,
            0);
}

TEST_F(AttnloadE2eTest, ErrorsSayWhatIsWrong) {
  const std::string server = " --server " + local_.server->address();
  for (const auto& [arguments, text] : std::vector<std::pair<std::string, std::string>>{
           {"bogus", "unknown subcommand 'bogus'"},
           {"run --slo_ms -1", "--slo_ms: got '-1', need a number above 0"},
           {"run --warmup -1", "--warmup: got '-1', need 0 or more"},
           {"run --scenarios /no/such.yaml", "cannot open /no/such.yaml: No such file"},
           {"run --scenarios /tmp", "cannot read /tmp"},
           {"floor" + server, "--server: floor asks no server"},
           {"run --admin 127.0.0.1:1" + server, "nothing accepts connections there"}}) {
    const ProgramResult result = RunProgram(ATTND_ATTNLOAD, arguments);
    EXPECT_NE(result.exit_code, 0) << arguments;
    EXPECT_NE(result.errors.find(text), std::string::npos) << arguments << ": " << result.errors;
    EXPECT_LT(result.errors.size(), 200U) << result.errors;
  }
}

TEST_F(AttnloadE2eTest, WrongUseAndAbsentServersHaveTheirExitCodes) {
  EXPECT_EQ(Run("run", "--scenario heads=0").exit_code, 2);
  EXPECT_EQ(Run("run", "--no_such_flag").exit_code, 2);
  EXPECT_EQ(Run("run", "--scenario capture=/no/such/file").exit_code, 2);
  EXPECT_EQ(RunProgram(ATTND_ATTNLOAD, "run --server 127.0.0.1:1 --connect_timeout 0.3").exit_code,
            3);
  EXPECT_EQ(RunProgram(ATTND_ATTNLOAD, "compare --help").exit_code, 0);
}

}  // namespace
}  // namespace attnd::loadtest
