// Faults of caches: capacity, stale pages, forks, other callers' data. Through gRPC.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "client/attention_client.h"
#include "tests/support/local_server.h"
#include "tests/support/random_tensors.h"
#include "tests/support/served_problem.h"

namespace attnd::testing {
namespace {

using kernels::DataType;

constexpr ProblemShape kBf16{.type = DataType::kBf16, .num_heads = 4, .num_kv_heads = 2};

ServerConfig SixteenTokenPages(std::int64_t cache_bytes) {
  ServerConfig config = SmallConfig();
  config.page_tokens = 16;
  config.cache_bytes = cache_bytes;
  return config;
}

ProblemSequence SelfAttending(const ProblemShape& shape, int length, std::uint64_t seed) {
  ProblemSequence sequence = SeededSequence(shape, length, length, seed, 1);
  sequence.causal = true;
  return sequence;
}

class CacheCasesTest : public ::testing::Test {
 protected:
  explicit CacheCasesTest(std::int64_t cache_bytes = std::int64_t{64} << 20)
      : server_(SixteenTokenPages(cache_bytes)),
        client_(
            {.transport = {.target = server_.server->address()}, .retry = {.max_attempts = 1}}) {}

  std::string Create(const ProblemShape& shape, std::int64_t max_tokens = 0) {
    v1::CreateSequenceRequest request = SequenceRequestFor(shape, {});
    request.set_max_tokens(max_tokens);
    const auto created = client_.CreateSequence(request);
    EXPECT_TRUE(created.ok()) << created.status();
    return created.ok() ? created->sequence_id() : "";
  }
  std::string Fork(const std::string& parent) {
    v1::ForkSequenceRequest request;
    request.set_sequence_id(parent);
    const auto forked = client_.ForkSequence(request);
    EXPECT_TRUE(forked.ok()) << forked.status();
    return forked.ok() ? forked->sequence_id() : "";
  }
  void Delete(const std::string& id) {
    v1::DeleteSequencesRequest request;
    request.add_sequence_ids(id);
    const auto deleted = client_.DeleteSequences(request);
    ASSERT_TRUE(deleted.ok()) << deleted.status();
    EXPECT_EQ(deleted->failures_size(), 0);
  }
  std::int64_t Length(const std::string& id) {
    v1::GetSequenceRequest request;
    request.set_sequence_id(id);
    const auto sequence = client_.GetSequence(request);
    EXPECT_TRUE(sequence.ok()) << sequence.status();
    return sequence.ok() ? sequence->layer_tokens(0) : -1;
  }
  absl::Status Append(const ProblemSequence& sequence, const std::string& id, std::int64_t begin,
                      int num_tokens, const ProblemShape& shape = kBf16) {
    return client_.Decode(StepFor(shape, sequence, id, begin, num_tokens)).status();
  }
  // Bytes of o for the sequence's first query over the first `position` cached tokens.
  std::string AttendOnly(const ProblemShape& shape, const ProblemSequence& sequence,
                         const std::string& id, std::int64_t position) {
    client::DecodeRequest request = StepFor(shape, sequence, id, 0, 1);
    request.k = request.v = {};
    request.steps[0].set_position(position);
    const auto result = client_.Decode(request);
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return {};
    return {reinterpret_cast<const char*>(result->o.data.get()),
            static_cast<std::size_t>(result->o.size_bytes)};
  }

  LocalServer server_;
  client::AttentionClient client_;
};

TEST_F(CacheCasesTest, AppendPastCapacityChangesNothing) {
  const ProblemSequence data = SelfAttending(kBf16, 70, 3);
  const std::string a = Create(kBf16, 64);
  const std::string b = Create(kBf16, 64);
  const std::string c = Create(kBf16, 64);
  ASSERT_TRUE(Append(data, a, 0, 64).ok());
  ASSERT_TRUE(Append(data, b, 0, 64).ok());
  ASSERT_TRUE(Append(data, c, 0, 62).ok());
  const std::string before = AttendOnly(kBf16, data, b, 64);

  const absl::Status refused = Append(data, a, 64, 1);
  EXPECT_EQ(refused.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(client::DescribeError(refused).detail.reason(), v1::REASON_LIMIT);
  EXPECT_EQ(Append(data, c, 62, 5).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Length(a), 64);
  EXPECT_EQ(Length(c), 62);
  EXPECT_TRUE(Append(data, c, 62, 2).ok());
  EXPECT_EQ(AttendOnly(kBf16, data, b, 64), before);
  EXPECT_EQ(AttendOnly(kBf16, data, a, 64), before);  // a holds the same tokens
}

TEST_F(CacheCasesTest, ForkedBranchesEqualFreshSequences) {
  const std::int64_t used_before = server_.server->GetSnapshot().pages_used;
  const ProblemSequence prompt = SelfAttending(kBf16, 37, 5);
  const std::string parent = Create(kBf16);
  ASSERT_TRUE(Append(prompt, parent, 0, 37).ok());

  struct Branch {
    std::string id;
    ProblemSequence tokens;  // prompt, then its own
    int length = 37;
  };
  std::vector<Branch> branches;
  const auto own_tokens = [&](const ProblemSequence& from, int shared, std::uint64_t seed) {
    ProblemSequence tokens = SelfAttending(kBf16, 120, seed);
    std::copy_n(from.q.begin(), shared * 256, tokens.q.begin());
    std::copy_n(from.k.begin(), shared * 128, tokens.k.begin());
    std::copy_n(from.v.begin(), shared * 128, tokens.v.begin());
    return tokens;
  };
  branches.push_back({parent, own_tokens(prompt, 37, 60)});
  for (int child = 0; child < 3; ++child) {
    branches.push_back({Fork(parent), own_tokens(prompt, 37, 61 + child)});
  }
  for (const int count : {1, 20, 3, 7}) {
    for (Branch& branch : branches) {
      ASSERT_TRUE(Append(branch.tokens, branch.id, branch.length, count).ok());
      branch.length += count;
    }
  }
  branches.push_back({Fork(branches[1].id), own_tokens(branches[1].tokens, branches[1].length, 70),
                      branches[1].length});
  Delete(parent);
  branches.erase(branches.begin());
  for (Branch& branch : branches) {
    const auto result = client_.Decode(StepFor(kBf16, branch.tokens, branch.id, branch.length, 5));
    ASSERT_TRUE(result.ok()) << result.status();
    ProblemSequence expected = branch.tokens;
    expected.query_length = 5;
    expected.kv_length = branch.length + 5;
    expected.q = {branch.tokens.q.begin() + branch.length * 256,
                  branch.tokens.q.begin() + (branch.length + 5) * 256};
    expected.k.resize(expected.kv_length * 128);
    expected.v.resize(expected.kv_length * 128);
    AttentionProblem problem(kBf16, {expected});
    EXPECT_EQ(CheckOutput(problem, 0, SplitAnswer(kBf16, {expected}, result->o, result->lse)[0]),
              "");
  }
  for (const Branch& branch : branches) Delete(branch.id);
  EXPECT_EQ(server_.server->GetSnapshot().pages_used, used_before);
}

TEST_F(CacheCasesTest, ForkCutsEveryLayerAndRefusesMoreThanTheLongest) {
  const ProblemSequence data = SelfAttending(kBf16, 40, 8);
  const std::string parent = Create(kBf16);
  ASSERT_TRUE(Append(data, parent, 0, 40).ok());
  v1::ForkSequenceRequest request;
  request.set_sequence_id(parent);
  request.set_num_tokens(17);
  const auto cut = client_.ForkSequence(request);
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(Length(cut->sequence_id()), 17);
  EXPECT_EQ(Length(parent), 40);
  EXPECT_TRUE(Append(data, cut->sequence_id(), 17, 3).ok());
  request.set_num_tokens(41);
  EXPECT_EQ(client_.ForkSequence(request).status().code(), absl::StatusCode::kOutOfRange);
}

// One slab: every page was somebody else's a moment ago.
class ReusedPagesTest : public CacheCasesTest {
 protected:
  ReusedPagesTest() : CacheCasesTest(std::int64_t{2} << 20) {}
};

TEST_F(ReusedPagesTest, UnusedSlotsNeverReachAnAnswer) {
  const ProblemShape shape{.type = DataType::kFp16, .num_heads = 2, .num_kv_heads = 1};
  const ProblemSequence data = SelfAttending(shape, 33, 20);
  std::string first;
  for (const float garbage : {0.0F, 1000.0F, 65504.0F, std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()}) {
    // Fills the whole pool with the value, then lets it go.
    ProblemSequence filler = SelfAttending(shape, 400, 1);
    filler.k.assign(filler.k.size(), garbage);
    filler.v.assign(filler.v.size(), garbage);
    std::vector<std::string> fillers;
    while (true) {
      const std::string id = Create(shape);
      fillers.push_back(id);
      client::DecodeRequest append = StepFor(shape, filler, id, 0, 400);
      append.q = {};
      const absl::Status status = client_.Decode(append).status();
      if (!status.ok()) {
        EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
        break;
      }
      ASSERT_LT(fillers.size(), 100U);
    }
    for (const std::string& id : fillers) Delete(id);
    const std::string id = Create(shape);
    ASSERT_TRUE(Append(data, id, 0, 33, shape).ok());
    const std::string answer = AttendOnly(shape, data, id, 33);
    if (first.empty()) first = answer;
    EXPECT_EQ(answer, first) << "after pages full of " << garbage;
    Delete(id);
  }
}

// V is the sequence's own number: whatever the weights, every output element must be it.
TEST_F(ReusedPagesTest, ChurnNeverMixesSequences) {
  const ProblemShape shape{
      .type = DataType::kBf16, .num_heads = 2, .num_kv_heads = 1, .head_dim = 32};
  constexpr int kThreads = 8;
  constexpr int kOperations = 250;
  std::atomic<int> wrong{0};
  std::atomic<int> answered{0};
  const auto worker = [&](int thread) {
    std::mt19937 random(thread);
    struct Live {
      std::string id;
      float value = 0;
      int length = 0;
    };
    std::vector<Live> live;
    const ProblemSequence noise = SelfAttending(shape, 64, 90 + thread);
    int next = 0;
    for (int operation = 0; operation < kOperations; ++operation) {
      if (live.size() < 8 && random() % 4 == 0) {
        const auto created = client_.CreateSequence(SequenceRequestFor(shape, {}));
        if (!created.ok()) continue;
        live.push_back(
            {created->sequence_id(), static_cast<float>(1 + (thread * 31 + next++) % 64), 0});
        continue;
      }
      if (live.empty()) continue;
      const std::size_t index = random() % live.size();
      Live& sequence = live[index];
      if (random() % 10 == 0) {
        v1::DeleteSequencesRequest request;
        request.add_sequence_ids(sequence.id);
        if (!client_.DeleteSequences(request).ok()) ++wrong;
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(index));
        continue;
      }
      const int count = 1 + static_cast<int>(random() % 40);
      client::DecodeRequest request = StepFor(shape, noise, sequence.id, 0, count);
      request.steps[0].set_position(sequence.length);
      request.v =
          WireTensor(shape.type, count, 1, 32,
                     std::vector<float>(static_cast<std::size_t>(count) * 32, sequence.value));
      const auto result = client_.Decode(request);
      if (!result.ok()) {
        if (result.status().code() != absl::StatusCode::kResourceExhausted) ++wrong;
        continue;
      }
      sequence.length += count;
      ++answered;
      const auto o = client::FloatsFromTensor(result->o);
      for (const float value : *o) {
        if (std::fabs(value - sequence.value) > sequence.value / 128) ++wrong;
      }
    }
    for (const Live& sequence : live) {
      v1::DeleteSequencesRequest request;
      request.add_sequence_ids(sequence.id);
      if (!client_.DeleteSequences(request).ok()) ++wrong;
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) threads.emplace_back(worker, thread);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(answered, 500);
  EXPECT_EQ(server_.server->GetSnapshot().pages_used, 0);
}

}  // namespace
}  // namespace attnd::testing
