// Numbers through scheduler, cache and backend: what steps see is what was appended, for every
// way of getting there. Debug and sanitizer builds fill freed pages with NaN, so a stale read
// shows.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <future>
#include <random>
#include <thread>

#include "kernels/reference/attention_reference.h"
#include "server/error_status.h"
#include "server/scheduler.h"
#include "tests/support/engine_requests.h"
#include "tests/support/random_tensors.h"
#include "tests/support/test_device.h"

namespace attnd {
namespace {

const HeadShape kShape{4, 2, 40};

// Rows of q, k and v for the tokens of one sequence.
struct Tokens {
  std::vector<float> q, k, v;
  std::int64_t size() const {
    return static_cast<std::int64_t>(q.size()) / (kShape.num_heads * kShape.head_dim);
  }
  void Append(const Tokens& other, std::int64_t begin, std::int64_t end) {
    const auto add = [&](std::vector<float>& to, const std::vector<float>& from, int heads) {
      const std::int64_t row = std::int64_t{heads} * kShape.head_dim;
      to.insert(to.end(), from.begin() + begin * row, from.begin() + end * row);
    };
    add(q, other.q, kShape.num_heads);
    add(k, other.k, kShape.num_kv_heads);
    add(v, other.v, kShape.num_kv_heads);
  }
  Tokens Slice(std::int64_t begin, std::int64_t end) const {
    Tokens slice;
    slice.Append(*this, begin, end);
    return slice;
  }
};

Tokens RandomTokens(std::uint64_t seed, std::int64_t count) {
  const std::int64_t q = count * kShape.num_heads * kShape.head_dim;
  const std::int64_t kv = count * kShape.num_kv_heads * kShape.head_dim;
  return {RandomValues(1000 * seed + 1, q, 2), RandomValues(1000 * seed + 2, kv, 2),
          RandomValues(1000 * seed + 3, kv, 1)};
}

// The float64 answer for the last `queries` rows of `tokens`.
std::vector<double> Expected(const Tokens& tokens, std::int64_t queries,
                             const AttentionOptionValues& options = {}, bool causal = true) {
  const ResolvedOptions resolved = ResolveOptions(options, kShape.head_dim);
  const std::int64_t q_row = std::int64_t{kShape.num_heads} * kShape.head_dim;
  const std::int64_t kv_row = std::int64_t{kShape.num_kv_heads} * kShape.head_dim;
  kernels::AttentionSequence sequence;
  sequence.q = tokens.q.data() + (tokens.size() - queries) * q_row;
  sequence.q_token_stride = q_row;
  sequence.q_head_stride = kShape.head_dim;
  sequence.kv.k = tokens.k.data();
  sequence.kv.v = tokens.v.data();
  sequence.kv.k_token_stride = sequence.kv.v_token_stride = kv_row;
  sequence.kv.k_head_stride = sequence.kv.v_head_stride = kShape.head_dim;
  sequence.query_length = static_cast<std::int32_t>(queries);
  sequence.kv_length = static_cast<std::int64_t>(tokens.k.size()) / kv_row;
  sequence.query_position = sequence.kv_length - queries;
  sequence.causal = causal;
  sequence.softmax_scale = resolved.softmax_scale;
  sequence.logits_soft_cap = resolved.logits_soft_cap;
  sequence.window_left = resolved.window_left;
  sequence.alibi_slopes = resolved.alibi_slopes;
  sequence.sink_logits = resolved.sink_logits;
  kernels::AttentionParams params;
  params.num_heads = kShape.num_heads;
  params.num_kv_heads = kShape.num_kv_heads;
  params.head_dim = kShape.head_dim;
  params.sequences = &sequence;
  params.num_sequences = 1;
  return kernels::ReferenceAttention(params, 0).o;
}

// FP32 sums of a few hundred products of size 1: a few hundred times 2^-24.
constexpr double kTolerance = 5e-5;

void ExpectRows(const AttentionResult& result, const std::vector<double>& expected) {
  ASSERT_TRUE(result.status.ok()) << result.status;
  ASSERT_TRUE(result.failed_steps.empty()) << result.failed_steps[0].status;
  const std::vector<float> got = Floats(result.o);
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], kTolerance) << i;
}

class KvCacheTest : public ::testing::Test {
 protected:
  KvCacheTest() : metrics_(BuildInfo{}, testing::TestDevice(), clock_) {
    config_.threads = 2;
    config_.cache_bytes = std::int64_t{16} << 20;
    config_.workspace_bytes = std::int64_t{64} << 20;
    config_.page_tokens = 16;
  }
  ~KvCacheTest() override {
    if (backend_) backend_->Stop();
  }

  Scheduler& scheduler() {
    if (!scheduler_) {
      backend_ = testing::MakeTestBackend(config_, clock_, metrics_);
      scheduler_ = std::make_unique<Scheduler>(config_, "key1", clock_, *backend_, metrics_);
    }
    return *scheduler_;
  }
  std::string Create(const AttentionOptionValues& options = {},
                     std::optional<RopeOptionValues> rope = std::nullopt) {
    CreateSequenceSpec spec = MakeSequenceSpec(kShape);
    spec.layer_groups.push_back({{}, options, std::move(rope)});
    const auto grant = scheduler().CreateSequence(spec);
    EXPECT_TRUE(grant.ok()) << grant.status();
    return grant->sequence_id;
  }
  AttentionResult Run(AttentionRequest request) {
    std::promise<AttentionResult> promise;
    request.on_done = RequestCompletion(
        [&promise](AttentionResult result) { promise.set_value(std::move(result)); });
    scheduler().Submit(std::move(request));
    return promise.get_future().get();
  }
  static AttentionRequest StepRequest(const std::string& id, const Tokens& tokens,
                                      std::int64_t position, std::uint64_t epoch = 0) {
    const auto count = static_cast<std::int32_t>(tokens.size());
    AttentionRequest request = MakeDecode(kShape, {MakeStep(id, position, count, epoch)});
    request.q = MakeTensor(tokens.q, {count, kShape.num_heads, kShape.head_dim}, 1001);
    request.k = MakeTensor(tokens.k, {count, kShape.num_kv_heads, kShape.head_dim}, 1001);
    request.v = MakeTensor(tokens.v, {count, kShape.num_kv_heads, kShape.head_dim});
    return request;
  }
  AttentionResult Step(const std::string& id, const Tokens& tokens, std::int64_t position,
                       std::uint64_t epoch = 0) {
    return Run(StepRequest(id, tokens, position, epoch));
  }
  std::string Fork(const std::string& id) {
    ForkSequenceSpec spec;
    spec.tenant = "default";
    spec.sequence_id = id;
    std::promise<absl::StatusOr<SequenceGrant>> promise;
    scheduler().ForkSequence(std::move(spec), [&](absl::StatusOr<SequenceGrant> grant) {
      promise.set_value(std::move(grant));
    });
    return promise.get_future().get()->sequence_id;
  }
  void Delete(const std::string& id) {
    std::promise<void> deleted;
    scheduler().DeleteSequences("default", {id}, [&](std::vector<SequenceFailureValue> failures) {
      EXPECT_TRUE(failures.empty());
      deleted.set_value();
    });
    deleted.get_future().get();
  }

  SteadyClock clock_;
  ServerConfig config_;
  Metrics metrics_;
  std::unique_ptr<AttentionBackend> backend_;
  std::unique_ptr<Scheduler> scheduler_;
};

TEST_F(KvCacheTest, EveryBranchOfForksEqualsASequenceOfItsOwn) {
  struct Branch {
    std::string id;
    Tokens tokens;
  };
  std::vector<Branch> branches(1);
  branches[0] = {Create(), RandomTokens(1, 37)};  // the third page is partly filled
  Step(branches[0].id, branches[0].tokens, 0);
  for (int child = 0; child < 3; ++child) {
    branches.push_back({Fork(branches[0].id), branches[0].tokens});
  }
  std::mt19937 random(5);
  const auto append = [&](Branch& branch) {
    const Tokens added = RandomTokens(random(), 1 + static_cast<std::int64_t>(random() % 20));
    const std::int64_t position = branch.tokens.size();
    branch.tokens.Append(added, 0, added.size());
    ExpectRows(Step(branch.id, added, position), Expected(branch.tokens, added.size()));
  };
  for (int i = 0; i < 16; ++i) append(branches[static_cast<std::size_t>(i) % branches.size()]);
  branches.push_back({Fork(branches[1].id), branches[1].tokens});  // a child of a child
  Delete(branches[0].id);
  branches.erase(branches.begin());
  for (int i = 0; i < 16; ++i) append(branches[static_cast<std::size_t>(i) % branches.size()]);
  for (const Branch& branch : branches) Delete(branch.id);
  EXPECT_EQ(scheduler().GetSnapshot().pages_used, 0);
}

TEST_F(KvCacheTest, RollbackForgetsRejectedTokens) {
  const std::string id = Create();
  Tokens tokens = RandomTokens(2, 20);
  Step(id, tokens, 0);
  for (std::uint64_t epoch = 1; epoch <= 10; ++epoch) {
    const Tokens guess = RandomTokens(100 + epoch, 5);
    Tokens all = tokens;
    all.Append(guess, 0, 5);
    ExpectRows(Step(id, guess, tokens.size(), epoch), Expected(all, 5));
    tokens.Append(guess, 0, static_cast<std::int64_t>(epoch % 5));  // so many were right
  }
}

TEST_F(KvCacheTest, RepeatGivesTheFirstAnswer) {
  const std::string id = Create();
  const Tokens tokens = RandomTokens(3, 50);
  Step(id, tokens.Slice(0, 40), 0);
  const std::vector<float> first = Floats(Step(id, tokens.Slice(40, 45), 40).o);
  Step(id, tokens.Slice(45, 50), 45);
  Tokens repeated = tokens.Slice(40, 45);
  std::fill(repeated.k.begin(), repeated.k.end(), NAN);  // not looked at
  const std::vector<float> again = Floats(Step(id, repeated, 40).o);
  ASSERT_EQ(first.size(), again.size());
  for (std::size_t i = 0; i < first.size(); ++i) ASSERT_NEAR(first[i], again[i], kTolerance);
}

TEST_F(KvCacheTest, WindowedLayerAnswersRightWhileItFreesPages) {
  config_.window_slack_tokens = 8;
  AttentionOptionValues options;
  options.window_left = 20;
  const std::string id = Create(options);
  const Tokens tokens = RandomTokens(4, 150);
  for (std::int64_t begin = 0; begin < 150;) {
    const std::int64_t end = std::min<std::int64_t>(150, begin == 0 ? 70 : begin + 1 + begin % 7);
    const Tokens prefix = tokens.Slice(0, end);
    ExpectRows(Step(id, tokens.Slice(begin, end), begin), Expected(prefix, end - begin, options));
    begin = end;
  }
  EXPECT_LE(scheduler().GetSnapshot().pages_used, 4);
}

TEST_F(KvCacheTest, OptionsOfTheLayerApplyToSteps) {
  AttentionOptionValues options;
  options.softmax_scale = -0.2F;
  options.logits_soft_cap = 3;
  options.alibi_slopes = {0.1F, 0.2F, 0.05F, 0.4F};
  options.sink_logits = {0.5F, -1, 2, 0};
  const std::string id = Create(options);
  const Tokens tokens = RandomTokens(6, 40);
  ExpectRows(Step(id, tokens.Slice(0, 33), 0), Expected(tokens.Slice(0, 33), 33, options));
  for (std::int64_t i = 33; i < 40; ++i) {
    ExpectRows(Step(id, tokens.Slice(i, i + 1), i), Expected(tokens.Slice(0, i + 1), 1, options));
  }
}

// Rotates pairs (i, i + rotary_dim / 2) of every head by position * theta^(-2i / rotary_dim).
void Rotate(std::vector<float>& rows, int heads, const RopeOptionValues& rope) {
  const int half = rope.rotary_dim / 2;
  const std::size_t row = static_cast<std::size_t>(heads) * kShape.head_dim;
  for (std::size_t r = 0; r < rows.size() / row; ++r) {
    for (int head = 0; head < heads; ++head) {
      float* values = &rows[r * row + static_cast<std::size_t>(head) * kShape.head_dim];
      for (int i = 0; i < half; ++i) {
        const double angle =
            static_cast<double>(r) * std::pow(double{rope.theta}, -2.0 * i / rope.rotary_dim);
        const double a = values[i], b = values[i + half];
        values[i] = static_cast<float>(a * std::cos(angle) - b * std::sin(angle));
        values[i + half] = static_cast<float>(a * std::sin(angle) + b * std::cos(angle));
      }
    }
  }
}

TEST_F(KvCacheTest, RopeRotatesQueriesAndKeysAtTheirPositions) {
  config_.prefill_chunk_time = Milliseconds{0};  // chunks rotate at their own positions too
  RopeOptionValues rope;
  rope.theta = 10'000;
  rope.rotary_dim = 32;  // the other 8 dimensions do not rotate
  const std::string id = Create({}, rope);
  const Tokens tokens = RandomTokens(7, 90);
  Tokens rotated = tokens;
  Rotate(rotated.q, kShape.num_heads, rope);
  Rotate(rotated.k, kShape.num_kv_heads, rope);
  ExpectRows(Step(id, tokens.Slice(0, 85), 0), Expected(rotated.Slice(0, 85), 85));
  for (std::int64_t i = 85; i < 90; ++i) {
    ExpectRows(Step(id, tokens.Slice(i, i + 1), i), Expected(rotated.Slice(0, i + 1), 1));
  }
}

TEST_F(KvCacheTest, AttendOnlySeesThePrefixWithoutAMask) {
  const std::string id = Create();
  const Tokens tokens = RandomTokens(8, 50);
  Step(id, tokens, 0);
  AttentionRequest request = StepRequest(id, tokens.Slice(0, 3), 30);
  request.k = request.v = TensorView{};
  Tokens expected = tokens.Slice(0, 30);
  expected.q = tokens.Slice(0, 3).q;
  ExpectRows(Run(std::move(request)), Expected(expected, 3, {}, /*causal=*/false));
}

TEST_F(KvCacheTest, AppendOnlyPromptServesLaterQueries) {
  const std::string id = Create();
  const Tokens tokens = RandomTokens(9, 50);
  AttentionRequest request = StepRequest(id, tokens.Slice(0, 49), 0);
  request.q = TensorView{};
  ASSERT_TRUE(Run(std::move(request)).status.ok());
  ExpectRows(Step(id, tokens.Slice(49, 50), 49), Expected(tokens, 1));
}

TEST_F(KvCacheTest, NaiveComputesTheSameOnTheSameCache) {
  const std::string id = Create();
  const Tokens tokens = RandomTokens(10, 60);
  AttentionRequest prompt = StepRequest(id, tokens.Slice(0, 50), 0);
  prompt.execution.algorithm = Algorithm::kNaive;
  ExpectRows(Run(std::move(prompt)), Expected(tokens.Slice(0, 50), 50));
  AttentionRequest step = StepRequest(id, tokens.Slice(50, 60), 50);
  step.execution.algorithm = Algorithm::kNaive;
  ExpectRows(Run(std::move(step)), Expected(tokens, 10));
}

TEST_F(KvCacheTest, PipelinedStepsAnswerAsIfSentOneByOne) {
  const std::string id = Create();
  const Tokens tokens = RandomTokens(11, 60);
  std::vector<std::promise<AttentionResult>> promises(60);
  for (std::int64_t i = 0; i < 60; ++i) {
    AttentionRequest request = StepRequest(id, tokens.Slice(i, i + 1), i);
    auto& promise = promises[static_cast<std::size_t>(i)];
    request.on_done = RequestCompletion(
        [&promise](AttentionResult result) { promise.set_value(std::move(result)); });
    scheduler().Submit(std::move(request));
  }
  for (std::int64_t i = 0; i < 60; ++i) {
    ExpectRows(promises[static_cast<std::size_t>(i)].get_future().get(),
               Expected(tokens.Slice(0, i + 1), 1));
  }
}

TEST_F(KvCacheTest, BatchInvariantBitsDoNotDependOnNeighboursOrChunks) {
  config_.batch_invariant = true;
  const Tokens tokens = RandomTokens(12, 300);
  std::vector<float> want;
  {
    config_.prefill_chunk_time = std::chrono::hours(1);  // the prompt in one launch
    const std::string alone = Create();
    want = Floats(Step(alone, tokens.Slice(0, 299), 0).o);
    scheduler_.reset();
    backend_->Stop();
  }
  config_.prefill_chunk_time = Milliseconds{0};  // a few rows a launch
  const std::string alone = Create();
  Step(alone, tokens.Slice(0, 299), 0);
  const std::vector<float> last = Floats(Step(alone, tokens.Slice(299, 300), 299).o);

  // The same tokens again among neighbours: all steps in one request.
  std::vector<std::string> ids;
  for (int i = 0; i < 7; ++i) ids.push_back(Create());
  for (const std::string& id : ids) {
    const std::vector<float> got = Floats(Step(id, tokens.Slice(0, 299), 0).o);
    ASSERT_EQ(0, std::memcmp(got.data(), want.data(), got.size() * sizeof(float)));
  }
  std::vector<DecodeStep> steps;
  Tokens rows;
  for (const std::string& id : ids) {
    steps.push_back(MakeStep(id, 299));
    rows.Append(tokens, 299, 300);
  }
  AttentionRequest request = StepRequest(ids[0], rows, 299);
  request.steps = steps;
  const std::vector<float> got = Floats(Run(std::move(request)).o);
  ASSERT_EQ(got.size(), ids.size() * last.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(0,
              std::memcmp(got.data() + i * last.size(), last.data(), last.size() * sizeof(float)));
  }
}

// Softmax weights sum to 1: where all values of a sequence are its own number, so is every output.
TEST_F(KvCacheTest, SequencesNeverSeeEachOtherUnderChurn) {
  config_.cache_bytes = std::int64_t{4} << 20;  // small: pages change hands all the time
  scheduler();
  constexpr int kThreads = 4, kSequencesEach = 16, kOperations = 500;
  std::atomic<int> wrong{0}, steps{0}, refused{0};
  std::atomic<int> next_value{1};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      struct Live {
        std::string id;
        float value = 0;
        std::int64_t length = 0;
      };
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<Live> live;
      for (int i = 0; i < kOperations; ++i) {
        if (live.size() < kSequencesEach && (live.empty() || random() % 4 == 0)) {
          live.push_back({Create(), static_cast<float>(next_value++ % 64 + 1), 0});
          continue;
        }
        Live& chosen = live[random() % live.size()];
        if (random() % 12 == 0) {
          Delete(chosen.id);
          chosen = live.back();
          live.pop_back();
          continue;
        }
        const auto count = 1 + static_cast<std::int64_t>(random() % 40);
        Tokens tokens = RandomTokens(random(), count);
        std::fill(tokens.v.begin(), tokens.v.end(), chosen.value);
        const AttentionResult result = Step(chosen.id, tokens, chosen.length);
        if (result.status.code() == absl::StatusCode::kResourceExhausted) {
          ++refused;
          continue;
        }
        ++steps;
        chosen.length += count;
        const std::vector<float> o = Floats(result.o);
        const bool right = result.status.ok() && std::all_of(o.begin(), o.end(), [&](float value) {
                             return std::fabs(value - chosen.value) <= 1e-4F * chosen.value;
                           });
        if (!right) ++wrong;
      }
      for (const Live& sequence : live) Delete(sequence.id);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(steps, 100);
  EXPECT_EQ(scheduler().GetSnapshot().pages_used, 0);
}

TEST_F(KvCacheTest, BatchWithAPageOutsideThePoolIsAFaultNotARead) {
  scheduler();
  auto batch = std::make_unique<Batch>();
  batch->shape.num_heads = batch->shape.num_kv_heads = 1;
  batch->shape.head_dim = 32;
  batch->shape.page_tokens = 16;
  batch->page_layout.page_tokens = 16;
  batch->page_layout.head_dim = batch->page_layout.padded_head_dim = 32;
  const AttentionRequest request = MakeDecode({1, 1, 32}, {MakeStep("", 0)});
  const RequestOutputs outputs = AllocateOutputs(request, 1);
  StepView view;
  view.visible_end = 1;
  PackStep(request, batch->shape, {}, {}, {0, 0, 0, 1}, view, outputs, batch->items.emplace_back());
  batch->page_tables.push_back(kernels::kInvalidPage);
  batch->BindPageTables();
  std::promise<absl::Status> promise;
  backend_->Submit(std::move(batch), [&](std::unique_ptr<Batch>, BatchResult result) {
    promise.set_value(result.status);
  });
  EXPECT_EQ(promise.get_future().get().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace attnd
