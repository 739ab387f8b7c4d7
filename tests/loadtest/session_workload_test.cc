// Sessions of a trace against a scripted server, over real connections.
#include "loadtest/session_workload.h"

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "loadtest/runner.h"
#include "tests/support/fake_attention_server.h"

namespace attnd::loadtest {
namespace {

using client::FakeAttentionServer;
using client::ScriptedAnswer;
using std::chrono::milliseconds;

constexpr char kShape[] = "kind=decode,heads=2,head_dim=8,layers=2";

ServiceWorkloadOptions OptionsFor(const FakeAttentionServer& server) {
  ServiceWorkloadOptions options;
  options.scenario = ParseScenario(kShape).value();
  options.transport.target = server.target();
  return options;
}

RunResult Replay(SessionWorkload& workload, const Trace& trace, int slots) {
  EXPECT_TRUE(workload.Prepare(slots).ok());
  const auto arrivals = TraceArrivals(trace);
  RunOptions options;
  options.slots = slots;
  options.arrivals = arrivals.get();
  options.duration = trace.back().arrival + std::chrono::seconds(1);  // a busy machine wakes late
  options.timeout = std::chrono::seconds(10);
  return Runner(options, workload, client::SystemTime()).Run();
}

TEST(SessionWorkloadTest, EverySessionAppendsItsPromptAndStepsThroughItsOutput) {
  FakeAttentionServer server;
  const Trace trace = {
      {milliseconds(0), 5, 3, {}}, {milliseconds(20), 1, 1, {}}, {milliseconds(40), 9, 2, {}}};
  SessionWorkload workload(OptionsFor(server), trace);
  const RunResult result = Replay(workload, trace, 3);
  EXPECT_EQ(result.ok, 3) << result.first_failure;
  EXPECT_EQ(result.skipped, 0);
  // The last row of the prompt answers the first token of the output.
  EXPECT_EQ(result.tokens, (5 + 2) + 1 + (9 + 1));
  EXPECT_EQ(workload.times().first_token.count(), 3);
  EXPECT_EQ(workload.times().step.count(), 2 + 0 + 1);
}

// Where arrivals are dense, the end of a session starts the next one, in its own slot.
TEST(SessionWorkloadTest, ASessionMayBeStartedFromTheEndOfTheOneBefore) {
  FakeAttentionServer server;
  SessionWorkload workload(OptionsFor(server), {{milliseconds(0), 2, 1, {}}});
  ASSERT_TRUE(workload.Prepare(1).ok());
  constexpr int kSessions = 20;
  int ended = 0;
  std::promise<void> all_ended;
  std::function<void(OperationResult)> next = [&](const OperationResult& result) {
    EXPECT_TRUE(result.status.ok()) << result.status;
    if (++ended == kSessions) return all_ended.set_value();
    workload.Start(0, std::chrono::seconds(10), next);
  };
  workload.Start(0, std::chrono::seconds(10), next);
  all_ended.get_future().wait();
  EXPECT_EQ(workload.times().first_token.count(), kSessions);
  EXPECT_EQ(workload.calls().at("CreateSequence").at("OK"), kSessions);
}

// The server makes the sequence of a call that is cancelled meanwhile: the workload asks for its id
// by the same key, and deletes it.
TEST(SessionWorkloadTest, ACreationThatACancelCutsOffLeavesNoSequence) {
  FakeAttentionServer server;
  SessionWorkload workload(OptionsFor(server), {{milliseconds(0), 5, 3, {}}});
  ASSERT_TRUE(workload.Prepare(1).ok());
  server.CloseGate();
  std::promise<OperationResult> ended;
  workload.Start(0, std::chrono::seconds(30),
                 [&ended](OperationResult result) { ended.set_value(std::move(result)); });
  server.AwaitCalls(1);
  workload.Cancel();
  server.AwaitCalls(2);
  server.OpenGate();
  EXPECT_EQ(ended.get_future().get().status.code(), absl::StatusCode::kCancelled);
  const CallCounts expected = {{"CreateSequence", {{"CANCELLED", 1}, {"OK", 1}}},
                               {"DeleteSequences", {{"OK", 1}}}};
  EXPECT_EQ(workload.calls(), expected);
  server.Stop();  // both calls have been looked at
  const std::vector<std::string> keys = server.creation_keys();
  ASSERT_EQ(keys.size(), 2U);
  EXPECT_EQ(keys[0], keys[1]);
}

TEST(SessionWorkloadTest, ALongPromptIsSentInChunks) {
  FakeAttentionServer server;
  ServiceWorkloadOptions options = OptionsFor(server);
  // 64 KiB of queries a token: 128 tokens fill a chunk.
  options.scenario = ParseScenario("kind=decode,heads=128,kv_heads=1,head_dim=128").value();
  const Trace trace = {{milliseconds(0), 300, 1, {}}};
  SessionWorkload workload(options, trace);
  const std::int64_t before = server.calls();
  const RunResult result = Replay(workload, trace, 1);
  EXPECT_EQ(result.ok, 1) << result.first_failure;
  EXPECT_EQ(result.tokens, 300);
  EXPECT_GE(server.calls() - before, 3);
}

// The scripted server knows no forks: a prefix that cannot be had is no failure.
TEST(SessionWorkloadTest, APromptIsSentWholeWhereItsPrefixIsGone) {
  FakeAttentionServer server;
  Trace trace = {{milliseconds(0), 100, 1, {1, 2}}, {milliseconds(50), 100, 1, {1, 2}}};
  for (TraceRecord& record : trace) record.block_tokens = 50;
  SessionWorkload workload(OptionsFor(server), trace, 1000);
  const RunResult result = Replay(workload, trace, 2);
  EXPECT_EQ(result.ok, 2) << result.first_failure;
  EXPECT_EQ(workload.times().forked_tokens, 0);
  EXPECT_EQ(workload.times().prompt_tokens, 200);
}

TEST(SessionWorkloadTest, AFailedSessionIsCountedAndNotTimed) {
  FakeAttentionServer server;
  server.SetRule([](std::int64_t) {
    ScriptedAnswer refusal;
    refusal.code = grpc::StatusCode::RESOURCE_EXHAUSTED;
    return refusal;
  });
  const Trace trace = {{milliseconds(0), 5, 3, {}}, {milliseconds(1), 5, 3, {}}};
  SessionWorkload workload(OptionsFor(server), trace);
  const RunResult result = Replay(workload, trace, 2);
  EXPECT_EQ(result.ok, 0);
  EXPECT_EQ(result.failed(), 2);
  EXPECT_EQ(workload.times().first_token.count(), 0);
  EXPECT_EQ(workload.times().step.count(), 0);
}

}  // namespace
}  // namespace attnd::loadtest
