// Faults of batching: unbounded queues, bad neighbours, stale rows, neighbours that change bits,
// batches of one. Through gRPC, with the backend held where the order matters.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "client/attention_client.h"
#include "tests/support/await.h"
#include "tests/support/local_server.h"
#include "tests/support/random_tensors.h"
#include "tests/support/served_problem.h"

namespace attnd::testing {
namespace {

using kernels::DataType;

constexpr ProblemShape kFp16{.type = DataType::kFp16, .num_heads = 2, .num_kv_heads = 2};

// Value of an exposition line that begins with `series`.
double MetricOf(const LocalServer& server, const std::string& series) {
  const std::string text = server.server->MetricsText();
  const std::size_t at = text.find("\n" + series + " ");
  return at == std::string::npos ? 0 : std::stod(text.substr(at + series.size() + 2));
}

class Callers {
 public:
  template <typename Function>
  void Start(Function function) {
    threads_.emplace_back(std::move(function));
  }
  void Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  ~Callers() { Join(); }

 private:
  std::vector<std::thread> threads_;
};

void AwaitQueued(const LocalServer& server, std::int64_t requests) {
  ASSERT_TRUE(Await([&] { return server.server->GetSnapshot().queue_requests >= requests; }));
}

client::ClientOptions NoRetries(const LocalServer& server) {
  return {.transport = {.target = server.server->address()}, .retry = {.max_attempts = 1}};
}

TEST(BatchingCasesTest, TheQueueIsBoundedAndRefusesAtOnce) {
  ServerConfig config = SmallConfig();
  config.max_queue_requests = 64;
  config.max_batch_sequences = 4;
  LocalServer server(config);
  server.backend.Hold();
  constexpr int kCalls = 1000;
  std::mutex mutex;
  std::condition_variable changed;
  int refused = 0;
  int served = 0;
  int other = 0;
  const v1::AttendRequest request = AttendRequestOf(64, 64, 1);
  std::vector<grpc::ClientContext> contexts(kCalls);
  std::vector<v1::AttendResponse> responses(kCalls);
  for (int call = 0; call < kCalls; ++call) {
    server.stub->async()->Attend(
        &contexts[call], &request, &responses[call], [&](const grpc::Status& status) {
          const std::lock_guard lock(mutex);
          if (status.ok()) {
            ++served;
          } else if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED &&
                     DetailOf(status).reason() == v1::REASON_QUEUE_FULL &&
                     DetailOf(status).has_retry_delay()) {
            ++refused;
          } else {
            ++other;
          }
          changed.notify_all();
        });
  }
  {
    // Nothing runs, so whoever is answered now was refused.
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(20),
                                 [&] { return refused >= kCalls - 64 - 8; }));
    EXPECT_EQ(served, 0);
  }
  EXPECT_LE(server.server->GetSnapshot().queue_requests, 64);
  server.backend.Release();
  {
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(30),
                                 [&] { return served + refused + other == kCalls; }));
    EXPECT_EQ(other, 0);
    EXPECT_GE(served, 64);
  }
  EXPECT_TRUE(server.AwaitIdle());
  EXPECT_EQ(MetricOf(server, "attnd_requests_total{method=\"Attend\",code=\"OK\"}"), served);
  EXPECT_EQ(MetricOf(server, "attnd_requests_total{method=\"Attend\",code=\"RESOURCE_EXHAUSTED\"}"),
            refused);
  EXPECT_EQ(MetricOf(server, "attnd_rejected_total{reason=\"queue_full\"}"), refused);
  grpc::ClientContext context;
  v1::AttendResponse response;
  EXPECT_TRUE(server.stub->Attend(&context, request, &response).ok());
}

TEST(BatchingCasesTest, OneBadRequestSpoilsNobody) {
  LocalServer server;
  client::AttentionClient client(NoRetries(server));
  const ProblemSequence blocker = SeededSequence(kFp16, 4, 4, 1, 1);
  server.backend.Hold();
  Callers callers;
  callers.Start([&] { EXPECT_TRUE(client.Attend(AttendRequestFor(kFp16, {blocker})).ok()); });
  server.backend.AwaitBatches(1);
  for (int i = 0; i < 13; ++i) {
    callers.Start([&, i] {
      EXPECT_EQ(CheckServed(client, kFp16, {SeededSequence(kFp16, 33, 33, 100 + i, 1)}), "");
    });
  }
  callers.Start([&] {
    client::AttendRequest bad = AttendRequestFor(kFp16, {blocker});
    bad.k.size_bytes -= 2;
    EXPECT_EQ(client.Attend(bad).status().code(), absl::StatusCode::kInvalidArgument);
  });
  callers.Start([&] {
    ProblemSequence poisoned = SeededSequence(kFp16, 33, 33, 200, 1);
    poisoned.v.assign(poisoned.v.size(), std::numeric_limits<float>::quiet_NaN());
    const auto result = client.Attend(AttendRequestFor(kFp16, {poisoned}));
    ASSERT_TRUE(result.ok()) << result.status();
    const std::vector<float> o = *client::FloatsFromTensor(result->o);
    for (const float value : o) ASSERT_TRUE(std::isnan(value)) << value;
  });
  callers.Start([&] {
    client::AttendRequest late = AttendRequestFor(kFp16, {blocker});
    late.execution.mutable_timeout()->set_nanos(20'000'000);
    EXPECT_EQ(client.Attend(late).status().code(), absl::StatusCode::kDeadlineExceeded);
  });
  AwaitQueued(server, 14);
  const auto late_answered = [&] {
    return MetricOf(server, "attnd_requests_total{method=\"Attend\",code=\"DEADLINE_EXCEEDED\"}") >
           0;
  };
  EXPECT_TRUE(Await(late_answered)) << "while the device is still busy";
  server.backend.Release();
  callers.Join();
}

TEST(BatchingCasesTest, SmallerBatchesAfterLargerOnesHoldNoStaleRows) {
  LocalServer server;
  client::AttentionClient client(NoRetries(server));
  std::uint64_t seed = 41;
  for (const int size : {10, 2, 10, 1, 10, 7}) {
    server.backend.Hold();
    Callers callers;
    const std::int64_t before = server.backend.batches();
    const ProblemSequence blocker = SeededSequence(kFp16, 1, 1, 1, 1);
    callers.Start([&] { EXPECT_TRUE(client.Attend(AttendRequestFor(kFp16, {blocker})).ok()); });
    server.backend.AwaitBatches(before + 1);
    for (int i = 0; i < size; ++i) {
      callers.Start([&, member = seed++] {
        EXPECT_EQ(CheckServed(client, kFp16, {SeededSequence(kFp16, 33, 33, member, 1)}), "");
      });
    }
    server.backend.AwaitBatches(before + 2);  // the rest is queued behind them
    server.backend.Release();
    callers.Join();
  }
}

std::string OutputBytes(const client::Tensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.data.get()),
          static_cast<std::size_t>(tensor.size_bytes)};
}

// Decode beside prefills of 1 to 40 tokens: right always, the same bits under batch_invariant.
void DecodeBesideNeighbours(bool batch_invariant) {
  ServerConfig config = SmallConfig();
  config.batch_invariant = batch_invariant;
  LocalServer server(config);
  client::AttentionClient client(NoRetries(server));
  const ProblemShape shape{.type = DataType::kBf16, .num_heads = 14, .num_kv_heads = 2};
  ProblemSequence victim = SeededSequence(shape, 1981, 1981, 19, 1);
  victim.causal = true;
  const auto created = client.CreateSequence(SequenceRequestFor(shape, victim));
  ASSERT_TRUE(created.ok()) << created.status();
  client::DecodeRequest prompt = StepFor(shape, victim, created->sequence_id(), 0, 1980);
  prompt.q = {};
  ASSERT_TRUE(client.Decode(prompt).ok());
  const client::DecodeRequest step = StepFor(shape, victim, created->sequence_id(), 1980, 1);
  ProblemSequence last = victim;
  last.query_length = 1;
  last.q = {victim.q.end() - 14 * 64, victim.q.end()};
  AttentionProblem problem(shape, {last});
  std::string first;
  for (int neighbour = 1; neighbour <= 40; ++neighbour) {
    Callers callers;
    server.backend.Hold();
    const std::int64_t before = server.backend.batches();
    const ProblemSequence blocker = SeededSequence(kFp16, 1, 1, 1, 1);
    callers.Start([&] { EXPECT_TRUE(client.Attend(AttendRequestFor(kFp16, {blocker})).ok()); });
    server.backend.AwaitBatches(before + 1);
    callers.Start([&] {
      ProblemSequence data = SeededSequence(shape, neighbour, neighbour, neighbour, 1);
      data.causal = true;
      EXPECT_EQ(CheckCached(client, shape, data, {neighbour}), "");
    });
    callers.Start([&] {
      const auto result = client.Decode(step);  // after the first time a repeat: the same answer
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(CheckOutput(problem, 0, SplitAnswer(shape, {last}, result->o, result->lse)[0]), "");
      if (first.empty()) first = OutputBytes(result->o);
      if (batch_invariant) {
        EXPECT_EQ(OutputBytes(result->o), first) << "beside " << neighbour << " tokens";
      }
    });
    AwaitQueued(server, 1);
    server.backend.Release();
  }
}

TEST(BatchingCasesTest, NeighboursLeaveADecodeStepRight) { DecodeBesideNeighbours(false); }
TEST(BatchingCasesTest, NeighboursLeaveTheBitsUnderBatchInvariance) {
  DecodeBesideNeighbours(true);
}

TEST(BatchingCasesTest, AnotherSequencesLengthChangesNothing) {
  LocalServer server;
  client::AttentionClient client(NoRetries(server));
  const ProblemShape shape{
      .type = DataType::kBf16, .num_heads = 32, .num_kv_heads = 8, .head_dim = 128};
  std::array<std::vector<float>, 2> answers;
  for (int run = 0; run < 2; ++run) {
    std::vector<ProblemSequence> sequences;
    for (const int length : {run == 0 ? 900 : 800, 1000, 120, 500}) {
      sequences.push_back(SeededSequence(shape, 1, length, 47 + sequences.size(), 1));
    }
    EXPECT_EQ(CheckServed(client, shape, sequences), "");
    const auto result = client.Attend(AttendRequestFor(shape, sequences));
    ASSERT_TRUE(result.ok()) << result.status();
    answers[run] = *client::FloatsFromTensor(result->o);
  }
  for (std::size_t i = 32 * 128; i < answers[0].size(); ++i) {
    EXPECT_NEAR(answers[0][i], answers[1][i], std::fabs(answers[0][i]) / 64);  // 2 ulp of BF16
  }
}

TEST(BatchingCasesTest, IdenticalConcurrentRequestsAgree) {
  LocalServer server;
  client::AttentionClient client(NoRetries(server));
  const ProblemShape shape{.type = DataType::kBf16, .num_heads = 8, .num_kv_heads = 2};
  ProblemSequence data = SeededSequence(shape, 50, 50, 48, 1);
  data.causal = true;
  AttentionProblem problem(shape, {data});
  const client::AttendRequest request = AttendRequestFor(shape, {data});
  // By their bits: equal ones need one look.
  std::map<std::string, client::AttendResult> answers;
  for (int round = 0; round < 100; ++round) {
    Callers callers;
    std::mutex mutex;
    for (int i = 0; i < (round % 2 == 0 ? 20 : 64); ++i) {
      callers.Start([&] {
        auto result = client.Attend(request);
        ASSERT_TRUE(result.ok()) << result.status();
        const std::lock_guard lock(mutex);
        std::string bytes = OutputBytes(result->o);
        answers.emplace(std::move(bytes), *std::move(result));
      });
    }
    callers.Join();
  }
  for (const auto& [bytes, answer] : answers) {
    EXPECT_EQ(CheckOutput(problem, 0, SplitAnswer(shape, {data}, answer.o, answer.lse)[0]), "");
  }
  Callers callers;
  for (int i = 0; i < 20; ++i) {
    callers.Start([&] {
      std::vector<int> chunks(30, 1);
      chunks.insert(chunks.begin(), 20);
      EXPECT_EQ(CheckCached(client, shape, data, chunks), "");
    });
  }
}

TEST(BatchingCasesTest, ABacklogIsServedInFullBatches) {
  ServerConfig config = SmallConfig();
  config.max_batch_sequences = 8;
  LocalServer server(config);
  client::AttentionClient client(NoRetries(server));
  const client::AttendRequest request =
      AttendRequestFor(kFp16, {SeededSequence(kFp16, 1, 16, 1, 1)});
  server.backend.Hold();
  Callers callers;
  callers.Start([&] { EXPECT_TRUE(client.Attend(request).ok()); });
  server.backend.AwaitBatches(1);
  for (int i = 0; i < 63; ++i) {
    callers.Start([&] { EXPECT_TRUE(client.Attend(request).ok()); });
  }
  // The first of them went into the second batch in flight by itself.
  AwaitQueued(server, 62);
  server.backend.Release();
  callers.Join();
  // 8 batches hold the 62.
  EXPECT_LE(server.backend.batches(), 1 + 8 + 1);
  EXPECT_EQ(MetricOf(server, "attnd_batch_requests_count"), server.backend.batches());
  EXPECT_EQ(MetricOf(server, "attnd_batch_requests_sum"), 64);
}

TEST(BatchingCasesTest, ADelayGathersALooseRound) {
  ServerConfig config = SmallConfig();
  config.max_batch_sequences = 8;
  config.max_queue_delay = Milliseconds(500);  // a full batch does not wait for it
  LocalServer server(config);
  client::AttentionClient client(NoRetries(server));
  const client::AttendRequest request =
      AttendRequestFor(kFp16, {SeededSequence(kFp16, 1, 16, 1, 1)});
  for (int round = 0; round < 50; ++round) {
    const std::int64_t before = server.backend.batches();
    Callers callers;
    for (int i = 0; i < 8; ++i) {
      callers.Start([&] { EXPECT_TRUE(client.Attend(request).ok()); });
    }
    callers.Join();
    EXPECT_LE(server.backend.batches() - before, 2);
  }
}

}  // namespace
}  // namespace attnd::testing
