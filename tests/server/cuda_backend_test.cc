// What only the GPU's backend does: launches cut to fit device memory, reruns that the device asks
// for, the end after a fault.
#include "server/cuda_backend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <future>
#include <limits>
#include <optional>

#include "server/cuda_device.h"
#include "server/scheduler.h"
#include "tests/support/engine_requests.h"
#include "tests/support/random_tensors.h"
#include "tests/support/test_device.h"

namespace attnd {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
const HeadShape kShape{4, 2, 64};

class CudaBackendTest : public ::testing::Test {
 protected:
  // Makes the backend, with this much device memory a batch in flight.
  Scheduler& Start(std::int64_t arena_bytes) {
    CudaBackend::Options options;
    const CudaFacts facts = ReadCudaFacts();
    options.limits.device.kind = kernels::DeviceKind::kCuda;
    options.limits.device.compute_capability = facts.gpus.at(0).compute_capability;
    options.limits.device.num_threads = facts.gpus.at(0).multiprocessors;
    options.limits.device_name = testing::TestDevice();
    options.limits.workspace_bytes = 64 * kMiB;
    options.limits.pool_bytes = 64 * kMiB;
    options.arena_bytes = arena_bytes;
    auto backend = CudaBackend::Create(options, metrics_);
    EXPECT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
    config_.workspace_bytes = options.limits.workspace_bytes;
    scheduler_.emplace(config_, "key1", clock_, *backend_, metrics_);
    return *scheduler_;
  }
  ~CudaBackendTest() override {
    if (backend_) backend_->Stop();
  }

  AttentionResult Run(AttentionRequest request) {
    std::promise<AttentionResult> promise;
    request.on_done = RequestCompletion(
        [&promise](AttentionResult result) { promise.set_value(std::move(result)); });
    scheduler_->Submit(std::move(request));
    return promise.get_future().get();
  }

  // `tokens` causal rows of the same random values, however often it is called.
  static AttentionRequest RandomAttend(std::int32_t tokens) {
    AttentionRequest request = MakeAttend(kShape, tokens, tokens);
    const auto values = [&](std::uint64_t seed, int heads) {
      return MakeTensor(RandomValues(seed, std::int64_t{tokens} * heads * kShape.head_dim, 1),
                        {tokens, heads, kShape.head_dim}, 100'003);
    };
    request.q = values(1, kShape.num_heads);
    request.k = values(2, kShape.num_kv_heads);
    request.v = values(3, kShape.num_kv_heads);
    request.options.causal = true;
    request.return_lse = true;
    return request;
  }

  SteadyClock clock_;
  ServerConfig config_;
  Metrics metrics_{BuildInfo{}, testing::TestDevice(), clock_};
  std::unique_ptr<CudaBackend> backend_;
  std::optional<Scheduler> scheduler_;
};

TEST_F(CudaBackendTest, SelfTestPasses) {
  Start(16 * kMiB);
  EXPECT_TRUE(backend_->SelfTest().ok()) << backend_->SelfTest();
}

// 1,500 tokens: 1.5 MiB of queries and as much of outputs, 0.75 MiB each of keys and values.
TEST_F(CudaBackendTest, WhatDoesNotFitRunsInSeveralLaunches) {
  Start(64 * kMiB);
  const AttentionResult whole = Run(RandomAttend(1500));
  ASSERT_TRUE(whole.status.ok()) << whole.status;
  scheduler_.reset();
  Start(3 * kMiB);
  const AttentionResult cut = Run(RandomAttend(1500));
  ASSERT_TRUE(cut.status.ok()) << cut.status;
  const std::vector<float> expected = Floats(whole.o);
  const std::vector<float> got = Floats(cut.o);
  ASSERT_EQ(got.size(), expected.size());
  // The same FP32 sums over the same keys, tiled from another row on.
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 1e-5) << i;
  const std::vector<float> lse = Floats(cut.lse);
  ASSERT_EQ(lse.size(), Floats(whole.lse).size());
  for (std::size_t i = 0; i < lse.size(); ++i) ASSERT_NEAR(lse[i], Floats(whole.lse)[i], 1e-4) << i;
}

// The same through the cache: tokens of the second half are appended by the second launch.
TEST_F(CudaBackendTest, ACutPromptSeesWhatWasAppendedBefore) {
  constexpr std::int32_t kTokens = 1500;
  std::vector<std::vector<float>> answers;
  for (const std::int64_t arena : {64 * kMiB, 3 * kMiB}) {
    scheduler_.reset();
    Scheduler& scheduler = Start(arena);
    const auto grant = scheduler.CreateSequence(MakeSequenceSpec(kShape));
    ASSERT_TRUE(grant.ok()) << grant.status();
    AttentionRequest prompt = MakeDecode(kShape, {MakeStep(grant->sequence_id, 0, kTokens)});
    const AttentionRequest tensors = RandomAttend(kTokens);
    prompt.q = tensors.q;
    prompt.k = tensors.k;
    prompt.v = tensors.v;
    const AttentionResult result = Run(std::move(prompt));
    ASSERT_TRUE(result.status.ok()) << result.status;
    answers.push_back(Floats(result.o));
  }
  ASSERT_EQ(answers[0].size(), answers[1].size());
  for (std::size_t i = 0; i < answers[0].size(); ++i) {
    ASSERT_NEAR(answers[0][i], answers[1][i], 1e-5) << i;
  }
}

TEST_F(CudaBackendTest, AFaultFailsItsBatchAndAllLaterOnes) {
  Start(16 * kMiB);
  const auto submit = [&](std::uint32_t page) {
    auto batch = std::make_unique<Batch>();
    batch->shape = {kernels::DataType::kFp32, kernels::DataType::kFp32, 1, 1, 32, 16};
    batch->page_layout.page_tokens = 16;
    batch->page_layout.head_dim = batch->page_layout.padded_head_dim = 32;
    const AttentionRequest request = MakeDecode({1, 1, 32}, {MakeStep("", 0)});
    const RequestOutputs outputs = AllocateOutputs(request, 1);
    StepView view;
    view.visible_end = 1;
    PackStep(request, batch->shape, {}, {}, {0, 0, 0, 1}, view, outputs,
             batch->items.emplace_back());
    batch->page_tables.push_back(page);
    batch->BindPageTables();
    std::promise<absl::Status> promise;
    backend_->Submit(std::move(batch), [&](std::unique_ptr<Batch>, BatchResult result) {
      promise.set_value(result.status);
    });
    return promise.get_future().get();
  };
  EXPECT_TRUE(submit(0).ok());
  EXPECT_EQ(submit(kernels::kInvalidPage).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(submit(0).code(), absl::StatusCode::kInternal);
}

TEST_F(CudaBackendTest, BandwidthIsMeasured) {
  Start(16 * kMiB);
  const double bytes_per_second = backend_->MeasureReadBandwidth();
  EXPECT_GT(bytes_per_second, 50e9);  // a sixth of the slowest card that is served
  EXPECT_LT(bytes_per_second, 20e12);
}

}  // namespace
}  // namespace attnd
