// The CPU backend under the real scheduler: numbers, staging, faults.
#include "server/cpu_backend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <random>
#include <thread>

#include "server/scheduler.h"
#include "tests/support/engine_requests.h"

namespace attnd {
namespace {

constexpr std::int64_t kPoolBytes = std::int64_t{16} << 20;

std::vector<float> RandomFloats(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> distribution(-1.0F, 1.0F);
  std::vector<float> values(count);
  for (float& value : values) value = distribution(generator);
  return values;
}

// Causal attention in double; rows see keys up to their own place, bottom-right.
std::vector<float> CausalReference(const HeadShape& shape, const std::vector<float>& q,
                                   const std::vector<float>& k, const std::vector<float>& v,
                                   std::int64_t queries, std::int64_t keys) {
  std::vector<float> o(q.size());
  const int group = shape.num_heads / shape.num_kv_heads;
  for (std::int64_t i = 0; i < queries; ++i) {
    for (int head = 0; head < shape.num_heads; ++head) {
      const float* query =
          &q[static_cast<std::size_t>((i * shape.num_heads + head) * shape.head_dim)];
      std::vector<double> weight;
      double sum = 0;
      for (std::int64_t j = 0; j <= i + keys - queries; ++j) {
        const float* key =
            &k[static_cast<std::size_t>((j * shape.num_kv_heads + head / group) * shape.head_dim)];
        double score = 0;
        for (int d = 0; d < shape.head_dim; ++d) score += double{query[d]} * key[d];
        weight.push_back(std::exp(score / std::sqrt(static_cast<double>(shape.head_dim))));
        sum += weight.back();
      }
      for (int d = 0; d < shape.head_dim; ++d) {
        double value = 0;
        for (std::size_t j = 0; j < weight.size(); ++j) {
          value += weight[j] * v[(j * static_cast<std::size_t>(shape.num_kv_heads) +
                                  static_cast<std::size_t>(head / group)) *
                                     static_cast<std::size_t>(shape.head_dim) +
                                 static_cast<std::size_t>(d)];
        }
        o[static_cast<std::size_t>((i * shape.num_heads + head) * shape.head_dim + d)] =
            static_cast<float>(value / sum);
      }
    }
  }
  return o;
}

void ExpectNear(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  // FP32 sums of a few hundred terms of size 1: a few hundred times 2^-24.
  constexpr float kTolerance = 2e-5F;
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], kTolerance) << i;
}

ServerConfig TestConfig() {
  ServerConfig config;
  config.threads = 2;
  config.cache_bytes = kPoolBytes;
  config.workspace_bytes = std::int64_t{64} << 20;
  return config;
}

class CpuBackendTest : public testing::Test {
 protected:
  CpuBackendTest()
      : metrics_(BuildInfo{}, "cpu", clock_),
        backend_(*CpuBackend::Create(config_, clock_, metrics_)),
        scheduler_(config_, "key1", clock_, *backend_, metrics_) {}
  ~CpuBackendTest() override { backend_->Stop(); }

  AttentionResult Run(AttentionRequest request) {
    std::promise<AttentionResult> promise;
    request.on_done = RequestCompletion(
        [&promise](AttentionResult result) { promise.set_value(std::move(result)); });
    scheduler_.Submit(std::move(request));
    return promise.get_future().get();
  }

  SteadyClock clock_;
  ServerConfig config_ = TestConfig();
  Metrics metrics_;
  std::unique_ptr<CpuBackend> backend_;
  Scheduler scheduler_;
};

TEST_F(CpuBackendTest, SelfTestPasses) {
  // A backend of its own: the self-test runs before the first batch.
  auto backend = CpuBackend::Create(config_, clock_, metrics_);
  ASSERT_TRUE(backend.ok());
  EXPECT_TRUE((*backend)->SelfTest().ok());
}

TEST_F(CpuBackendTest, ConfigurationThatIsNotResolvedIsRefused) {
  EXPECT_FALSE(CpuBackend::Create(ServerConfig{}, clock_, metrics_).ok());
}

TEST_F(CpuBackendTest, AttendComputesAttentionFromScatteredPieces) {
  const HeadShape shape{4, 2, 40};
  const auto q = RandomFloats(7 * 4 * 40, 1);
  const auto k = RandomFloats(19 * 2 * 40, 2);
  const auto v = RandomFloats(19 * 2 * 40, 3);
  AttentionRequest request = MakeAttend(shape, 7, 19);
  // 1001 bytes: pieces begin inside elements.
  request.q = MakeTensor(q, {7, 4, 40}, 1001);
  request.k = MakeTensor(k, {19, 2, 40}, 1001);
  request.v = MakeTensor(v, {19, 2, 40}, 1001);
  request.options.causal = true;
  const AttentionResult result = Run(std::move(request));
  ASSERT_TRUE(result.status.ok()) << result.status;
  ExpectNear(Floats(result.o), CausalReference(shape, q, k, v, 7, 19));
  EXPECT_FALSE(result.execution.kernels.empty());
  EXPECT_EQ(result.execution.batch_requests, 1);
}

TEST_F(CpuBackendTest, DecodeStepsContinueAPrompt) {
  const HeadShape shape{4, 2, 40};
  const int tokens = 70;
  const auto q = RandomFloats(tokens * 4 * 40, 4);
  const auto k = RandomFloats(tokens * 2 * 40, 5);
  const auto v = RandomFloats(tokens * 2 * 40, 6);
  const auto want = CausalReference(shape, q, k, v, tokens, tokens);
  const auto created = scheduler_.CreateSequence(MakeSequenceSpec(shape));
  ASSERT_TRUE(created.ok()) << created.status();
  const auto rows = [](const std::vector<float>& values, int begin, int end, int width) {
    return std::vector<float>(values.begin() + begin * width, values.begin() + end * width);
  };
  std::vector<float> got;
  const int prompt = 33;
  for (int begin = 0; begin < tokens;) {
    const int end = begin == 0 ? prompt : begin + 1;
    AttentionRequest request =
        MakeDecode(shape, {MakeStep(created->sequence_id, begin, end - begin)});
    request.q = MakeTensor(rows(q, begin, end, 160), {end - begin, 4, 40}, 999);
    request.k = MakeTensor(rows(k, begin, end, 80), {end - begin, 2, 40}, 999);
    request.v = MakeTensor(rows(v, begin, end, 80), {end - begin, 2, 40});
    const AttentionResult result = Run(std::move(request));
    ASSERT_TRUE(result.status.ok()) << result.status;
    const auto o = Floats(result.o);
    got.insert(got.end(), o.begin(), o.end());
    begin = end;
  }
  ExpectNear(got, want);
}

// Naive scores of eight sequences do not fit working memory that holds those of three.
TEST_F(CpuBackendTest, ABatchOverTheWorkspaceRunsInSeveralLaunches) {
  const HeadShape shape{4, 2, 32};
  constexpr int kSequences = 8, kTokens = 128;
  const auto launches_with = [&](std::int64_t workspace_bytes, std::vector<float>& o) {
    ServerConfig config = config_;
    config.workspace_bytes = workspace_bytes;
    Metrics metrics(BuildInfo{}, "cpu", clock_);
    const auto backend = *CpuBackend::Create(config, clock_, metrics);
    {
      Scheduler scheduler(config, "key3", clock_, *backend, metrics);
      const int rows = kSequences * kTokens;
      AttentionRequest request = MakeAttend(shape, rows, rows);
      request.attend_sequences.assign(kSequences, {kTokens, kTokens, 0, 0});
      request.q = MakeTensor(RandomFloats(rows * 128, 10), {rows, 4, 32});
      request.k = MakeTensor(RandomFloats(rows * 64, 11), {rows, 2, 32});
      request.v = MakeTensor(RandomFloats(rows * 64, 12), {rows, 2, 32});
      request.options.causal = true;
      request.execution.algorithm = Algorithm::kNaive;
      std::promise<AttentionResult> promise;
      request.on_done = RequestCompletion(
          [&promise](AttentionResult result) { promise.set_value(std::move(result)); });
      scheduler.Submit(std::move(request));
      const AttentionResult result = promise.get_future().get();
      EXPECT_TRUE(result.status.ok()) << result.status;
      EXPECT_EQ(result.execution.batch_requests, 1);
      o = Floats(result.o);
    }
    backend->Stop();
    const std::string page = metrics.Expose();
    const std::string name = "\nattnd_kernel_launches_total ";
    return std::stoi(page.substr(page.find(name) + name.size()));
  };
  std::vector<float> whole, parts;
  EXPECT_EQ(launches_with(std::int64_t{64} << 20, whole), 1);
  constexpr std::int64_t kScoreBytes = std::int64_t{4} * kTokens * kTokens * sizeof(float);
  EXPECT_EQ(launches_with(3 * kScoreBytes + kScoreBytes / 2, parts), 4) << "halved twice";
  EXPECT_EQ(parts, whole);
}

TEST_F(CpuBackendTest, PromptInChunksEqualsPromptInOneLaunch) {
  // A chunk time this short cuts the prompt into many launches.
  config_.prefill_chunk_time = Milliseconds{0};
  Scheduler scheduler(config_, "key2", clock_, *backend_, metrics_);
  const HeadShape shape{4, 2, 32};
  const int tokens = 200;
  const auto q = RandomFloats(tokens * 4 * 32, 7);
  const auto k = RandomFloats(tokens * 2 * 32, 8);
  const auto v = RandomFloats(tokens * 2 * 32, 9);
  AttentionRequest request = MakeAttend(shape, tokens, tokens);
  request.q = MakeTensor(q, {tokens, 4, 32}, 1001);
  request.k = MakeTensor(k, {tokens, 2, 32}, 1001);
  request.v = MakeTensor(v, {tokens, 2, 32}, 1001);
  request.options.causal = true;
  std::promise<AttentionResult> promise;
  request.on_done = RequestCompletion(
      [&promise](AttentionResult result) { promise.set_value(std::move(result)); });
  scheduler.Submit(std::move(request));
  const AttentionResult result = promise.get_future().get();
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_LT(result.execution.batch_tokens, tokens);
  ExpectNear(Floats(result.o), CausalReference(shape, q, k, v, tokens, tokens));
}

// Where a request is answered: on the thread that ran its last batch.
std::thread::id AnsweringThread(Scheduler& scheduler, AttentionRequest request) {
  std::promise<std::thread::id> promise;
  request.on_done = RequestCompletion(
      [&promise](const AttentionResult&) { promise.set_value(std::this_thread::get_id()); });
  scheduler.Submit(std::move(request));
  return promise.get_future().get();
}

TEST_F(CpuBackendTest, OnlySmallBatchesRunOnTheSubmittingThread) {
  const HeadShape shape{4, 2, 32};
  EXPECT_EQ(AnsweringThread(scheduler_, MakeAttend(shape, 1, 64)), std::this_thread::get_id());
  // 4 MiB of keys and values; 8 million multiply-adds.
  EXPECT_NE(AnsweringThread(scheduler_, MakeAttend(shape, 1, 8192)), std::this_thread::get_id());
  EXPECT_NE(AnsweringThread(scheduler_, MakeAttend(shape, 256, 256)), std::this_thread::get_id());
}

TEST_F(CpuBackendTest, BatchesKeepTheirOrderBehindOneOnTheSubmittingThread) {
  auto first = std::make_unique<Batch>();
  auto second = std::make_unique<Batch>();
  std::vector<int> ended;
  std::promise<void> second_ended;
  BatchDone first_done = [&](std::unique_ptr<Batch>, const BatchResult& result) {
    EXPECT_TRUE(result.status.ok());
    ended.push_back(1);
  };
  BatchDone second_done = [&](std::unique_ptr<Batch>, const BatchResult& result) {
    EXPECT_TRUE(result.status.ok());
    second_ended.set_value();
  };
  auto run = backend_->SubmitHere(first, first_done);
  ASSERT_TRUE(run);
  EXPECT_EQ(first, nullptr);
  EXPECT_FALSE(backend_->SubmitHere(second, second_done));
  ASSERT_NE(second, nullptr);
  backend_->Submit(std::move(second), std::move(second_done));
  auto end = second_ended.get_future();
  EXPECT_EQ(end.wait_for(Milliseconds{50}), std::future_status::timeout);
  run();
  EXPECT_EQ(ended, std::vector<int>{1});
  end.get();
}

TEST_F(CpuBackendTest, StopWaitsForABatchOnTheSubmittingThread) {
  auto backend = CpuBackend::Create(config_, clock_, metrics_);
  ASSERT_TRUE(backend.ok());
  auto batch = std::make_unique<Batch>();
  bool ended = false;
  BatchDone done = [&](std::unique_ptr<Batch>, const BatchResult&) { ended = true; };
  auto run = (*backend)->SubmitHere(batch, done);
  ASSERT_TRUE(run);
  auto stopped = std::async(std::launch::async, [&] { (*backend)->Stop(); });
  EXPECT_EQ(stopped.wait_for(Milliseconds{50}), std::future_status::timeout);
  run();
  stopped.get();
  EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace attnd
