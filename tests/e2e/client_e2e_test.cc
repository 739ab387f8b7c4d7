// The client library against the real server in this process.
#include "client/attention_client.h"

#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/local_server.h"

namespace attnd::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kHeads = 4;
constexpr int kKvHeads = 2;
constexpr int kDim = 32;

std::vector<float> RandomValues(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

Tensor Fp32(std::int64_t tokens, int heads, const std::vector<float>& values) {
  return TensorFromFloats(v1::DATA_TYPE_FP32, {tokens, heads, kDim}, values).value();
}

// Rows `first` to `first + count` of a tensor, sharing its memory.
Tensor Rows(const Tensor& tensor, std::int64_t first, std::int64_t count) {
  const std::int64_t row = tensor.size_bytes / tensor.shape[0];
  Tensor rows = tensor;
  rows.shape[0] = count;
  rows.size_bytes = row * count;
  rows.data = std::shared_ptr<const std::byte>(tensor.data, tensor.data.get() + row * first);
  return rows;
}

// Float64 attention of query `i` of `queries` over its causal keys (bottom-right), one head.
std::vector<double> ExactRow(const std::vector<float>& q, const std::vector<float>& k,
                             const std::vector<float>& v, int i, int queries, int keys, int head) {
  const int kv_head = head / (kHeads / kKvHeads);
  const int visible = i + keys - queries + 1;
  std::vector<double> scores;
  double maximum = -INFINITY;
  for (int j = 0; j < visible; ++j) {
    double score = 0;
    for (int d = 0; d < kDim; ++d) {
      score += static_cast<double>(q[(i * kHeads + head) * kDim + d]) *
               k[(j * kKvHeads + kv_head) * kDim + d];
    }
    scores.push_back(score / std::sqrt(kDim));
    maximum = std::max(maximum, scores.back());
  }
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - maximum);
  std::vector<double> o(kDim);
  for (int j = 0; j < visible; ++j) {
    for (int d = 0; d < kDim; ++d) {
      o[d] += scores[j] / sum * v[(j * kKvHeads + kv_head) * kDim + d];
    }
  }
  return o;
}

class ClientE2eTest : public ::testing::Test {
 protected:
  ClientOptions Options() {
    ClientOptions options;
    options.transport.target = local_.server->address();
    return options;
  }
  v1::CreateSequenceRequest SequenceRequest() {
    v1::CreateSequenceRequest request;
    request.set_num_layers(1);
    request.set_num_heads(kHeads);
    request.set_num_kv_heads(kKvHeads);
    request.set_head_dim(kDim);
    request.set_data_type(v1::DATA_TYPE_FP32);
    return request;
  }
  static v1::Step StepOf(const std::string& id, std::int64_t position, int tokens,
                         std::uint64_t epoch = 0) {
    v1::Step step;
    step.set_sequence_id(id);
    step.set_position(position);
    step.set_num_tokens(tokens);
    step.set_epoch(epoch);
    return step;
  }

  static constexpr int kTokens = 70;
  const std::vector<float> q_values_ = RandomValues(kTokens * kHeads * kDim, 1);
  const std::vector<float> k_values_ = RandomValues(kTokens * kKvHeads * kDim, 2);
  const std::vector<float> v_values_ = RandomValues(kTokens * kKvHeads * kDim, 3);
  const Tensor q_ = Fp32(kTokens, kHeads, q_values_);
  const Tensor k_ = Fp32(kTokens, kKvHeads, k_values_);
  const Tensor v_ = Fp32(kTokens, kKvHeads, v_values_);
  attnd::testing::LocalServer local_;
};

TEST_F(ClientE2eTest, AttendMatchesFloat64) {
  AttentionClient client(Options());
  AttendRequest request{.q = q_, .k = k_, .v = v_};
  request.options.set_causal(true);
  const auto result = client.Attend(request);
  ASSERT_TRUE(result.ok()) << ErrorText(result.status());
  const std::vector<float> o = *FloatsFromTensor(result->o);
  for (int i = 0; i < kTokens; ++i) {
    for (int head = 0; head < kHeads; ++head) {
      const std::vector<double> exact =
          ExactRow(q_values_, k_values_, v_values_, i, kTokens, kTokens, head);
      for (int d = 0; d < kDim; ++d) {
        // Values of order 1; FP32 sums over at most 70 keys stay far below this.
        ASSERT_NEAR(o[(i * kHeads + head) * kDim + d], exact[d], 1e-5) << i << " " << head;
      }
    }
  }
  EXPECT_GT(result->execution.kernels_size(), 0);
}

// A sequence fed in a prompt and then token by token over a stream gives Attend's rows.
TEST_F(ClientE2eTest, StreamedDecodeStepsEqualAttend) {
  AttentionClient client(Options());
  AttendRequest attend{.q = q_, .k = k_, .v = v_};
  attend.options.set_causal(true);
  const auto whole = client.Attend(attend);
  ASSERT_TRUE(whole.ok());
  const std::vector<float> expected = *FloatsFromTensor(whole->o);

  const auto created = client.CreateSequence(SequenceRequest());
  ASSERT_TRUE(created.ok()) << ErrorText(created.status());
  const std::string& id = created->sequence_id();
  constexpr int kPrompt = 40;
  DecodeRequest prompt{
      {StepOf(id, 0, kPrompt)}, Rows(q_, 0, kPrompt), Rows(k_, 0, kPrompt), Rows(v_, 0, kPrompt)};
  const auto prefilled = client.Decode(prompt);
  ASSERT_TRUE(prefilled.ok()) << ErrorText(prefilled.status());
  std::vector<float> o = *FloatsFromTensor(prefilled->o);

  const auto stream = client.OpenDecodeStream();
  std::vector<std::future<absl::StatusOr<DecodeResult>>> futures;
  for (int token = kPrompt; token < kTokens; ++token) {
    futures.push_back(stream->Submit(DecodeRequest{
        {StepOf(id, token, 1)}, Rows(q_, token, 1), Rows(k_, token, 1), Rows(v_, token, 1)}));
  }
  for (auto& future : futures) {
    const auto result = future.get();
    ASSERT_TRUE(result.ok()) << ErrorText(result.status());
    const std::vector<float> row = *FloatsFromTensor(result->o);
    o.insert(o.end(), row.begin(), row.end());
  }
  ASSERT_EQ(o.size(), expected.size());
  for (std::size_t i = 0; i < o.size(); ++i) ASSERT_NEAR(o[i], expected[i], 1e-5) << i;
}

TEST_F(ClientE2eTest, RepeatsAreAnsweredAndRollbacksCut) {
  AttentionClient client(Options());
  const std::string id = client.CreateSequence(SequenceRequest())->sequence_id();
  const DecodeRequest first{{StepOf(id, 0, 8)}, Rows(q_, 0, 8), Rows(k_, 0, 8), Rows(v_, 0, 8)};
  const auto once = client.Decode(first);
  const auto again = client.Decode(first);
  ASSERT_TRUE(once.ok() && again.ok()) << ErrorText(again.status());
  const std::vector<float> a = *FloatsFromTensor(once->o);
  const std::vector<float> b = *FloatsFromTensor(again->o);
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-5);

  const auto rolled =
      client.Decode({{StepOf(id, 5, 1, 1)}, Rows(q_, 5, 1), Rows(k_, 5, 1), Rows(v_, 5, 1)});
  ASSERT_TRUE(rolled.ok()) << ErrorText(rolled.status());
  v1::GetSequenceRequest get;
  get.set_sequence_id(id);
  EXPECT_EQ(client.GetSequence(get)->layer_tokens(0), 6);

  const CallError late = DescribeError(client.Decode(first).status());
  EXPECT_EQ(late.code, absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(late.reason, v1::REASON_STALE_EPOCH);
  EXPECT_EQ(late.detail.epoch(), 1U);
}

TEST_F(ClientE2eTest, PartialResultsMergeToTheWhole) {
  AttentionClient client(Options());
  AttendRequest whole{.q = q_, .k = k_, .v = v_};
  whole.options.set_causal(true);
  for (int head = 0; head < kHeads; ++head) {
    whole.options.add_sink_logits(0.25F * static_cast<float>(head));
  }
  whole.return_lse = true;
  const auto expected = client.Attend(whole);
  ASSERT_TRUE(expected.ok()) << ErrorText(expected.status());

  std::vector<PartialState> parts;
  for (const auto& [first, count] : {std::pair(0, 25), std::pair(25, 45)}) {
    AttendRequest part{.q = q_, .k = Rows(k_, first, count), .v = Rows(v_, first, count)};
    part.options = whole.options;
    part.query_positions = {0};
    part.key_positions = {first};
    part.partial = true;
    const auto result = client.Attend(part);
    ASSERT_TRUE(result.ok()) << ErrorText(result.status());
    parts.push_back({result->o, result->lse});
  }
  const std::vector<float> sinks(whole.options.sink_logits().begin(),
                                 whole.options.sink_logits().end());
  const auto merged = MergeStates(parts, sinks, v1::DATA_TYPE_FP32);
  ASSERT_TRUE(merged.ok()) << merged.status();
  const std::vector<float> o = *FloatsFromTensor(merged->o);
  const std::vector<float> expected_o = *FloatsFromTensor(expected->o);
  for (std::size_t i = 0; i < o.size(); ++i) ASSERT_NEAR(o[i], expected_o[i], 1e-5) << i;
  const std::vector<float> lse = *FloatsFromTensor(merged->lse);
  const std::vector<float> expected_lse = *FloatsFromTensor(expected->lse);
  for (std::size_t i = 0; i < lse.size(); ++i) ASSERT_NEAR(lse[i], expected_lse[i], 1e-5) << i;
}

TEST_F(ClientE2eTest, SequencesForkTruncateListAndDelete) {
  AttentionClient client(Options());
  const std::string id = client.CreateSequence(SequenceRequest())->sequence_id();
  ASSERT_TRUE(client.Decode({{StepOf(id, 0, 20)}, {}, Rows(k_, 0, 20), Rows(v_, 0, 20)}).ok());
  v1::ForkSequenceRequest fork;
  fork.set_sequence_id(id);
  fork.set_num_tokens(12);
  const auto forked = client.ForkSequence(fork);
  ASSERT_TRUE(forked.ok()) << ErrorText(forked.status());
  v1::TruncateSequencesRequest truncate;
  truncate.add_sequence_ids(id);
  truncate.set_num_tokens(3);
  truncate.set_epoch(1);
  const auto truncated = client.TruncateSequences(truncate);
  ASSERT_TRUE(truncated.ok()) << ErrorText(truncated.status());
  EXPECT_EQ(truncated->failures_size(), 0);
  const auto listed = client.ListSequences({});
  ASSERT_TRUE(listed.ok());
  ASSERT_EQ(listed->sequences_size(), 2);
  for (const v1::Sequence& sequence : listed->sequences()) {
    EXPECT_EQ(sequence.layer_tokens(0), sequence.sequence_id() == id ? 3 : 12);
  }
  v1::DeleteSequencesRequest remove;
  remove.add_sequence_ids(id);
  remove.add_sequence_ids(forked->sequence_id());
  ASSERT_TRUE(client.DeleteSequences(remove).ok());
  v1::GetSequenceRequest get;
  get.set_sequence_id(id);
  EXPECT_EQ(DescribeError(client.GetSequence(get).status()).reason, v1::REASON_DELETED);
}

TEST_F(ClientE2eTest, CreationIsSafeToRepeat) {
  AttentionClient client(Options());
  v1::CreateSequenceRequest request = SequenceRequest();
  request.set_creation_key(std::string(16, 'k'));
  const auto first = client.CreateSequence(request);
  const auto second = client.CreateSequence(request);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->sequence_id(), second->sequence_id());
  request.set_num_layers(2);
  EXPECT_EQ(DescribeError(client.CreateSequence(request).status()).reason, v1::REASON_CREATION_KEY);
}

// Over the real limit: refused by the server, and the same connection serves the next call.
TEST(ClientServerE2eTest, AMessageOverTheLimitIsRefusedAndTheConnectionGoesOn) {
  ServerConfig config = attnd::testing::SmallConfig();
  config.max_message_bytes = 1 << 20;
  attnd::testing::LocalServer local(config);
  ClientOptions options;
  options.transport.target = local.server->address();
  AttentionClient client(options);
  const std::vector<float> values(4096 * kDim * 2);
  AttendRequest large{.q = *TensorFromFloats(v1::DATA_TYPE_FP32, {4096, 2, kDim}, values)};
  large.k = large.v = large.q;
  EXPECT_EQ(client.Attend(large).status().code(), absl::StatusCode::kResourceExhausted);
  AttendRequest small;
  small.q = small.k = small.v = Rows(large.q, 0, 16);
  const auto result = client.Attend(small);
  EXPECT_TRUE(result.ok()) << ErrorText(result.status());
}

// A queue that holds one request refuses most of a burst; pushback and retries bring all through.
TEST(ClientServerE2eTest, ABurstOverAFullQueueSucceedsByRetries) {
  ServerConfig config = attnd::testing::SmallConfig();
  config.max_queue_requests = 1;
  attnd::testing::LocalServer local(config);
  ClientOptions options;
  options.transport.target = local.server->address();
  options.retry.max_attempts = 1000;
  options.retry.budget_tokens = 1e6;
  AttentionClient client(options);
  AttendRequest request;
  const std::vector<float> values = RandomValues(256 * 2 * kDim, 5);
  request.q = request.k = request.v = *TensorFromFloats(v1::DATA_TYPE_FP32, {256, 2, kDim}, values);
  std::vector<std::thread> threads;
  std::atomic<int> succeeded{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int call = 0; call < 10; ++call) {
        const auto result = client.Attend(request);
        EXPECT_TRUE(result.ok()) << ErrorText(result.status());
        succeeded += result.ok() ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(succeeded.load(), 80);
}

TEST(ClientServerE2eTest, KeptLeasesOutliveTheirLength) {
  attnd::testing::LocalServer local;
  ClientOptions options;
  options.transport.target = local.server->address();
  AttentionClient client(options);
  v1::CreateSequenceRequest request;
  request.set_num_layers(1);
  request.set_num_heads(1);
  request.set_num_kv_heads(1);
  request.set_head_dim(8);
  request.set_data_type(v1::DATA_TYPE_FP32);
  request.mutable_lease()->set_nanos(700'000'000);
  const std::string kept = client.CreateSequence(request)->sequence_id();
  const std::string left = client.CreateSequence(request)->sequence_id();
  std::promise<std::string> lost;
  const auto keeper = client.KeepLeases(
      {.lease = milliseconds(700),
       .interval = milliseconds(150),
       .on_lost = [&](const std::string& id, const absl::Status&) { lost.set_value(id); }});
  keeper->Add(kept);
  const auto start = std::chrono::steady_clock::now();
  v1::GetSequenceRequest get;
  get.set_sequence_id(left);
  while (client.GetSequence(get).ok() && std::chrono::steady_clock::now() - start < seconds(20)) {
    std::this_thread::yield();
  }
  EXPECT_EQ(DescribeError(client.GetSequence(get).status()).reason, v1::REASON_EXPIRED);
  get.set_sequence_id(kept);
  EXPECT_TRUE(client.GetSequence(get).ok());
  EXPECT_EQ(keeper->size(), 1);
  // One that is gone is reported and dropped.
  keeper->Add(left);
  EXPECT_EQ(lost.get_future().get(), left);
}

// A client that holds a sequence and a stream over a restart is told so within five seconds.
TEST(ClientServerE2eTest, ARestartedServerIsReachedAndTellsThatSequencesAreGone) {
  auto local = std::make_unique<attnd::testing::LocalServer>();
  ServerConfig config = attnd::testing::SmallConfig();
  config.listen = local->server->address();
  ClientOptions options;
  options.transport.target = config.listen;
  AttentionClient client(options);
  v1::CreateSequenceRequest request;
  request.set_num_layers(1);
  request.set_num_heads(1);
  request.set_num_kv_heads(1);
  request.set_head_dim(8);
  request.set_data_type(v1::DATA_TYPE_FP32);
  const std::string id = client.CreateSequence(request)->sequence_id();
  const auto stream = client.OpenDecodeStream();
  const auto step = [&](std::int64_t position) {
    DecodeRequest decode;
    v1::Step& one = decode.steps.emplace_back();
    one.set_sequence_id(id);
    one.set_position(position);
    one.set_num_tokens(1);
    decode.q = decode.k = decode.v =
        *TensorFromFloats(v1::DATA_TYPE_FP32, {1, 1, 8}, std::vector<float>(8, 1));
    return decode;
  };
  ASSERT_TRUE(stream->Submit(step(0)).get().ok());
  local.reset();
  auto pending = stream->Submit(step(1));
  local = std::make_unique<attnd::testing::LocalServer>(config);
  const auto start = std::chrono::steady_clock::now();
  const auto answer = pending.get();
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(5));
  EXPECT_EQ(DescribeError(answer.status()).reason, v1::REASON_SERVER_RESTARTED)
      << ErrorText(answer.status());
  EXPECT_TRUE(client.CreateSequence(request).ok());
}

}  // namespace
}  // namespace attnd::client
