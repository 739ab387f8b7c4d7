// Workloads and commands against a scripted server and the echo server, over real connections.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "client/file_bytes.h"
#include "client/safetensors.h"
#include "loadtest/capture.h"
#include "loadtest/commands.h"
#include "loadtest/echo_process.h"
#include "loadtest/echo_server.h"
#include "loadtest/runner.h"
#include "loadtest/workload.h"
#include "nlohmann/json.hpp"
#include "tests/support/fake_attention_server.h"
#include "tests/support/temporary_path.h"

namespace attnd::loadtest {
namespace {

using client::FakeAttentionServer;
using client::ScriptedAnswer;
using std::chrono::seconds;

Scenario Parsed(const std::string& text) { return ParseScenario(text).value(); }

std::unique_ptr<Workload> Prepared(const std::string& target, const Scenario& scenario) {
  ServiceWorkloadOptions options;
  options.scenario = scenario;
  options.transport.target = target;
  std::unique_ptr<Workload> workload = MakeServiceWorkload(options);
  EXPECT_TRUE(workload->Prepare(scenario.workers).ok());
  return workload;
}

RunResult RunRequests(Workload& workload, int slots, std::int64_t requests) {
  RunOptions options;
  options.slots = slots;
  options.max_requests = requests;
  options.duration = seconds(60);
  options.timeout = seconds(10);
  return Runner(options, workload, client::SystemTime()).Run();
}

nlohmann::json ReadJson(const std::string& path) {
  const auto file = client::ReadFileBytes(path);
  EXPECT_TRUE(file.ok()) << file.status();
  const auto* text = reinterpret_cast<const char*>(file->data.get());
  return nlohmann::json::parse(text, text + file->size);
}

CommonOptions Common(const FakeAttentionServer& server, const std::string& json_path) {
  CommonOptions common;
  common.transport.target = server.target();
  common.json_path = json_path;
  common.progress = false;
  common.timeout_seconds = 5;
  common.command = {"attnload", "test"};
  common.program = ATTND_ATTNLOAD;
  return common;
}

TEST(ServiceWorkloadTest, AttendRequestsAreAnsweredAndCounted) {
  FakeAttentionServer server;
  const auto workload = Prepared(server.target(), Parsed("tokens=16,heads=2,head_dim=8,workers=3"));
  const RunResult result = RunRequests(*workload, 3, 50);
  EXPECT_EQ(result.ok, 50) << result.first_failure;
  EXPECT_EQ(result.tokens, 50 * 16);
  EXPECT_EQ(result.kernels, std::set<std::string>{"fake/attend"});
  EXPECT_EQ(result.kernel_time.max().count(), 1000);
}

TEST(ServiceWorkloadTest, DecodeStreamsStepThroughTokensAndGoBackByEpoch) {
  FakeAttentionServer server;
  const auto workload = Prepared(
      server.target(), Parsed("kind=decode,heads=2,head_dim=8,prompt=5,steps=3,layers=2,workers=1,"
                              "mode=stream"));
  const RunResult result = RunRequests(*workload, 1, 14);
  ASSERT_EQ(result.ok, 14) << result.first_failure;
  std::vector<std::string> steps;
  for (const auto& request : server.stream_requests()) {
    const v1::Step& step = request.steps(0);
    steps.push_back(std::to_string(step.position()) + "." + std::to_string(step.layer()) + "e" +
                    std::to_string(step.epoch()));
  }
  const std::vector<std::string> expected{"5.0e0", "5.1e0", "6.0e0", "6.1e0", "7.0e0",
                                          "7.1e0", "5.0e1", "5.1e1", "6.0e1", "6.1e1",
                                          "7.0e1", "7.1e1", "5.0e2", "5.1e2"};
  EXPECT_EQ(steps, expected);
}

TEST(ServiceWorkloadTest, EveryDecodeSlotOwnsItsSequences) {
  FakeAttentionServer server;
  const auto workload =
      Prepared(server.target(), Parsed("kind=decode,heads=2,head_dim=8,prompt=0,workers=3,"
                                       "sequences=2,mode=stream,connections=2"));
  EXPECT_EQ(server.creation_keys().size(), 6U);
  const RunResult result = RunRequests(*workload, 3, 60);
  EXPECT_EQ(result.ok, 60);
  EXPECT_EQ(result.tokens, 120);
  EXPECT_EQ(server.streams(), 2);
}

// 30 % RESOURCE_EXHAUSTED and 5 % UNAVAILABLE over the wire, unary and on a stream.
TEST(ServiceWorkloadTest, RefusedRequestsAreCountedByCodeAndNotRepeated) {
  for (const char* mode : {"unary", "stream"}) {
    FakeAttentionServer server;
    server.SetRule([](std::int64_t call) -> ScriptedAnswer {
      if (call % 20 < 6) {
        return {
            .code = grpc::StatusCode::RESOURCE_EXHAUSTED,
            .detail = client::DetailWithDelay(v1::REASON_QUEUE_FULL, std::chrono::milliseconds(1)),
            .pushback = "1"};
      }
      return {.code = call % 20 == 6 ? grpc::StatusCode::UNAVAILABLE : grpc::StatusCode::OK};
    });
    ServiceWorkloadOptions options;
    options.scenario = Parsed(std::string("kind=decode,heads=1,head_dim=8,workers=4,mode=") + mode);
    options.transport.target = server.target();
    options.fill_cache = false;
    const auto workload = MakeServiceWorkload(options);
    // Creation is refused too, and repeated by the client: what follows is counted from here.
    ASSERT_TRUE(workload->Prepare(4).ok());
    const std::int64_t before = server.calls();
    const RunResult result = RunRequests(*workload, 4, 1'000);
    EXPECT_EQ(result.sent, 1'000);
    EXPECT_EQ(result.ok + result.failed(), 1'000);
    EXPECT_EQ(server.calls() - before, 1'000) << "a repeated request would hide a failure";
    EXPECT_EQ(result.failures.at("RESOURCE_EXHAUSTED/QUEUE_FULL"), 300);
    EXPECT_EQ(result.failures.at("UNAVAILABLE"), 50);
    EXPECT_EQ(result.latency.count(), result.ok);
  }
}

TEST(ServiceWorkloadTest, AServerKilledHalfWayEndsTheRunWithAReport) {
  FakeAttentionServer server;
  const auto workload = Prepared(server.target(), Parsed("tokens=4,heads=1,head_dim=8,workers=2"));
  constexpr int kCalls = 20;
  std::thread killer([&] {
    server.AwaitCalls(kCalls);
    server.Stop();
  });
  RunOptions options;
  options.slots = 2;
  options.duration = seconds(60);
  options.timeout = seconds(2);
  options.give_up = std::chrono::milliseconds(500);
  const auto start = std::chrono::steady_clock::now();
  const RunResult result = Runner(options, *workload, client::SystemTime()).Run();
  killer.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(10));
  EXPECT_TRUE(result.gave_up);
  EXPECT_GE(result.ok, kCalls - options.slots) << "each slot has one call under way, at most";
  EXPECT_GT(result.failed(), 0);
  EXPECT_EQ(result.ok + result.failed(), result.sent);
}

TEST(ServiceWorkloadTest, CapturedTensorsAreSent) {
  client::Safetensors capture;
  const std::vector<float> values(2 * 3 * 4, 0.5F);
  for (const char* name : {"layer.0.q", "layer.0.k", "layer.0.v"}) {
    capture.tensors[name] = *client::TensorFromFloats(v1::DATA_TYPE_BF16, {2, 3, 4}, values);
  }
  const std::string path = TemporaryPath("capture.safetensors");
  ASSERT_TRUE(client::WriteSafetensors(path, capture).ok());
  FakeAttentionServer server;
  Scenario scenario = Parsed("capture=" + path + ",prefix=layer.0.");
  ASSERT_TRUE(ResolveCapture(scenario).ok());
  EXPECT_EQ(scenario.data_type, v1::DATA_TYPE_BF16);
  EXPECT_EQ(scenario.tokens, 2);
  EXPECT_EQ(scenario.heads, 3);
  EXPECT_EQ(scenario.head_dim, 4);
  const auto workload = Prepared(server.target(), scenario);
  const RunResult result = RunRequests(*workload, 1, 3);
  EXPECT_EQ(result.ok, 3) << result.first_failure;
  EXPECT_EQ(result.tokens, 6);

  ServiceWorkloadOptions missing;
  missing.scenario = Parsed("capture=" + path + ",prefix=layer.9.");
  missing.transport.target = server.target();
  EXPECT_EQ(MakeServiceWorkload(missing)->Prepare(1).code(), absl::StatusCode::kNotFound);
}

TEST(ServiceWorkloadTest, TheEchoMovesTheSameBytes) {
  for (const char* text : {"tokens=100,heads=4,head_dim=32,type=bf16",
                           "kind=decode,heads=32,kv_heads=8,head_dim=128,type=bf16,workers=2",
                           "kind=decode,heads=32,kv_heads=8,head_dim=128,type=bf16,mode=stream"}) {
    const Scenario scenario = Parsed(text);
    auto echo = EchoServer::Start(scenario);
    ASSERT_TRUE(echo.ok()) << echo.status();
    ServiceWorkloadOptions options;
    options.scenario = scenario;
    options.transport.target = (*echo)->target();
    options.fill_cache = false;
    const auto workload = MakeServiceWorkload(options);
    ASSERT_TRUE(workload->Prepare(scenario.workers).ok());
    const RunResult result = RunRequests(*workload, scenario.workers, 100);
    EXPECT_EQ(result.ok, 100) << text << ": " << result.first_failure;
    const std::int64_t o_bytes =
        TokensPerRequest(scenario) * scenario.heads * scenario.head_dim * 2;
    EXPECT_GT((*echo)->reply_bytes(), o_bytes);
    EXPECT_LT((*echo)->reply_bytes(), o_bytes + 200);
    EXPECT_GT((*echo)->request_bytes(), o_bytes);
  }
}

TEST(ServiceWorkloadTest, TheEchoProcessServesAndTellsItsSizes) {
  const Scenario scenario = Parsed("kind=decode,heads=4,head_dim=64,workers=1");
  auto echo = EchoProcess::Start(ATTND_ATTNLOAD, scenario);
  ASSERT_TRUE(echo.ok()) << echo.status();
  ServiceWorkloadOptions options;
  options.scenario = scenario;
  options.transport.target = (*echo)->target();
  options.fill_cache = false;
  {
    const auto workload = MakeServiceWorkload(options);
    ASSERT_TRUE(workload->Prepare(1).ok());
    EXPECT_EQ(RunRequests(*workload, 1, 20).ok, 20);
  }
  const EchoProcess::Bytes bytes = (*echo)->Stop();
  EXPECT_NEAR(static_cast<double>(bytes.request), 3 * 4 * 64 * 4, 200);
  EXPECT_NEAR(static_cast<double>(bytes.reply), 4 * 64 * 4, 200);
  EXPECT_EQ(EchoProcess::Start("/no/such/program", scenario).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(EchoProcess::Start("/bin/false", scenario).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(ServiceWorkloadTest, RunExitsWithFailureAboveTheAllowedRatio) {
  FakeAttentionServer server;
  LoadOptions load;
  load.scenario = Parsed("tokens=4,heads=1,head_dim=8,workers=2");
  load.warmup_seconds = 0;
  load.max_requests = 40;
  load.floor = false;
  server.SetRule([](std::int64_t call) -> ScriptedAnswer {
    return {.code = call % 4 == 3 ? grpc::StatusCode::INTERNAL : grpc::StatusCode::OK};
  });
  const std::string path = TemporaryPath("run.json");
  CommonOptions common = Common(server, path);
  common.max_failure_ratio = 0.1;
  EXPECT_EQ(RunLoad(common, load), kExitFailures);
  const nlohmann::json report = ReadJson(path);
  const nlohmann::json& result = report["run"]["result"];
  EXPECT_EQ(result["sent"], 40);
  EXPECT_EQ(result["ok"].get<int>() + result["failed"].get<int>(), 40);
  EXPECT_EQ(result["failures"]["INTERNAL"], result["failed"]);
  common.max_failure_ratio = 0.5;
  EXPECT_EQ(RunLoad(common, load), kExitOk);
}

TEST(ServiceWorkloadTest, AnAbsentServerEndsEveryCommandWithinTenSeconds) {
  FakeAttentionServer server;
  CommonOptions common = Common(server, "");
  common.connect_timeout_seconds = 0.5;
  server.Stop();
  const auto start = std::chrono::steady_clock::now();
  LoadOptions load;
  load.scenario = Parsed("tokens=4");
  EXPECT_EQ(RunLoad(common, load), kExitNoServer);
  CompareOptions compare;
  compare.scenarios = {load.scenario};
  EXPECT_EQ(RunCompare(common, compare), kExitNoServer);
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(10));
}

// Connecting may take longer than the whole measurement.
TEST(ServiceWorkloadTest, AFloorHasAnswersHoweverShortItIs) {
  FakeAttentionServer server;
  const auto floor = MeasureFloor(Common(server, ""), Parsed("tokens=4,workers=3"), 1e-6);
  ASSERT_TRUE(floor.ok()) << floor.status();
  EXPECT_GE(floor->run.ok, 3);
  EXPECT_GT(floor->run.latency.Percentile(0.5), std::chrono::nanoseconds(0));
}

TEST(ServiceWorkloadTest, CompareReportsEveryFigureOfAScenario) {
  FakeAttentionServer server;
  const std::string path = TemporaryPath("compare.json");
  CompareOptions compare;
  compare.scenarios = {Parsed("name=small,tokens=4,heads=1,head_dim=8,workers=2"),
                       Parsed("name=lone,kind=decode,heads=1,head_dim=8,prompt=4,workers=1")};
  compare.blocks = 3;
  compare.block_seconds = 0.05;
  compare.floor_seconds = 0.1;
  ASSERT_EQ(RunCompare(Common(server, path), compare), kExitOk);
  const nlohmann::json report = ReadJson(path);
  EXPECT_EQ(report["command"], "attnload test");
  EXPECT_FALSE(report["machine"]["cpu"].get<std::string>().empty());
  ASSERT_EQ(report["scenarios"].size(), 2U);
  const nlohmann::json& small = report["scenarios"][0];
  EXPECT_EQ(small["name"], "small");
  for (const char* key : {"fused_tokens_per_second", "naive_tokens_per_second", "fused_over_naive",
                          "batching_on_over_off", "floor_p50_us"}) {
    EXPECT_GT(small[key].get<double>(), 0) << key;
  }
  for (const char* side : {"fused", "naive", "alone"}) {
    EXPECT_GT(small[side]["p50_us"].get<double>(), 0) << side;
    EXPECT_GE(small[side]["p99_us"].get<double>(), small[side]["p50_us"].get<double>()) << side;
    EXPECT_NEAR(small[side]["kernel_p50_us"].get<double>(), 1, 0.01) << side;
    EXPECT_EQ(small[side]["block_tokens_per_second"].size(), 3U) << side;
  }
  EXPECT_TRUE(report["scenarios"][1]["batching_on_over_off"].is_null())
      << "one request in flight has nothing to share a batch with";
}

TEST(ServiceWorkloadTest, CompareFailsWhereOneSideIsRefused) {
  FakeAttentionServer server;
  server.SetRule([](std::int64_t) -> ScriptedAnswer {
    return {.code = grpc::StatusCode::PERMISSION_DENIED,
            .detail = client::DetailWithDelay(v1::REASON_COMPARISON_DISABLED)};
  });
  CompareOptions compare;
  compare.scenarios = {Parsed("tokens=4,heads=1,head_dim=8")};
  compare.blocks = 1;
  compare.block_seconds = 0.05;
  compare.floor_seconds = 0.1;
  // GetServerInfo is refused by the same rule.
  EXPECT_EQ(RunCompare(Common(server, ""), compare), kExitNoServer);
  server.SetRule([](std::int64_t call) -> ScriptedAnswer {
    return {.code = call > 20 ? grpc::StatusCode::PERMISSION_DENIED : grpc::StatusCode::OK};
  });
  EXPECT_EQ(RunCompare(Common(server, ""), compare), kExitFailures);
}

}  // namespace
}  // namespace attnd::loadtest
