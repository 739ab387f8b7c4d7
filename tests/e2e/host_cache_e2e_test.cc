// More sequences than the cache holds, their pages in host memory while they idle: every answer is
// that of a server with room for all, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/local_calls.h"
#include "tests/support/local_server.h"

namespace attnd::testing {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr int kLayers = 2;
constexpr int kHeads = 2;
constexpr int kHeadDim = 64;
// A page of 32 tokens has 32 KiB, so 64 of them fill the smallest cache, a slab: four sequences of
// 256 tokens in two layers.
constexpr int kPromptTokens = 256;
constexpr int kSequences = 12;

ServerConfig WithCache(std::int64_t cache_bytes, std::int64_t host_cache_bytes) {
  ServerConfig config = SmallConfig();
  config.cache_bytes = cache_bytes;
  config.host_cache_bytes = host_cache_bytes;
  config.page_tokens = 32;
  config.batch_invariant = true;  // answers are compared with those of other batches
  return config;
}

void FillRandom(v1::Tensor& tensor, std::int64_t tokens, std::mt19937& random) {
  SetShape(tensor, {tokens, kHeads, kHeadDim});
  tensor.set_data_type(v1::DATA_TYPE_FP32);
  std::string& data = *tensor.mutable_data();
  data.resize(static_cast<std::size_t>(tokens * kHeads * kHeadDim * 4));
  std::uniform_real_distribution<float> values(-1, 1);
  for (std::size_t i = 0; i < data.size(); i += 4) {
    const float value = values(random);
    std::memcpy(data.data() + i, &value, 4);
  }
}

struct Answer {
  grpc::Status status;
  std::string o;
};

// Of two FP32 tensors' bytes; infinity where they differ in length.
float LargestDifference(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return INFINITY;
  float largest = 0;
  for (std::size_t i = 0; i + sizeof(float) <= a.size(); i += sizeof(float)) {
    float left = 0;
    float right = 0;
    std::memcpy(&left, a.data() + i, sizeof left);
    std::memcpy(&right, b.data() + i, sizeof right);
    largest = std::max(largest, std::fabs(left - right));
  }
  return largest;
}

class HostCacheE2eTest : public ::testing::Test {
 protected:
  static std::string Create(const LocalServer& server) {
    v1::CreateSequenceRequest request = OneLayer();
    request.set_num_layers(kLayers);
    request.set_head_dim(kHeadDim);
    std::string id;
    EXPECT_TRUE(testing::Create(server, request, &id).ok());
    return id;
  }
  // The same tokens for the same arguments, whatever the server.
  static Answer Step(const LocalServer& server, const std::string& id, int seed, int layer,
                     std::int64_t position, std::int32_t tokens, std::uint64_t epoch = 0) {
    std::mt19937 random(static_cast<unsigned>(seed * 1'000'003 + layer * 7919 + position));
    v1::DecodeRequest request;
    v1::Step& step = *request.add_steps();
    step.set_sequence_id(id);
    step.set_layer(layer);
    step.set_position(position);
    step.set_num_tokens(tokens);
    step.set_epoch(epoch);
    FillRandom(*request.mutable_q(), tokens, random);
    FillRandom(*request.mutable_k(), tokens, random);
    FillRandom(*request.mutable_v(), tokens, random);
    grpc::ClientContext context;
    v1::DecodeResponse response;
    Answer answer;
    answer.status = server.stub->Decode(&context, request, &response);
    answer.o = response.o().data();
    return answer;
  }
  static v1::Sequence Get(const LocalServer& server, const std::string& id) {
    grpc::ClientContext context;
    v1::GetSequenceRequest request;
    request.set_sequence_id(id);
    v1::Sequence sequence;
    EXPECT_TRUE(server.stub->GetSequence(&context, request, &sequence).ok());
    return sequence;
  }
  static grpc::Status Fork(const LocalServer& server, const std::string& id, std::string& child) {
    grpc::ClientContext context;
    v1::ForkSequenceRequest request;
    request.set_sequence_id(id);
    v1::ForkSequenceResponse response;
    const grpc::Status status = server.stub->ForkSequence(&context, request, &response);
    child = response.sequence_id();
    return status;
  }
  static bool Truncate(const LocalServer& server, const std::string& id, std::int64_t tokens,
                       std::uint64_t epoch) {
    grpc::ClientContext context;
    v1::TruncateSequencesRequest request;
    request.add_sequence_ids(id);
    request.set_num_tokens(tokens);
    request.set_epoch(epoch);
    v1::TruncateSequencesResponse response;
    return server.stub->TruncateSequences(&context, request, &response).ok() &&
           response.failures().empty();
  }
  static void Delete(const LocalServer& server, const std::string& id) {
    grpc::ClientContext context;
    v1::DeleteSequencesRequest request;
    request.add_sequence_ids(id);
    v1::DeleteSequencesResponse response;
    EXPECT_TRUE(server.stub->DeleteSequences(&context, request, &response).ok());
  }
  // Prompts of all layers of `count` new sequences, one after the other.
  static std::vector<std::string> FillWith(const LocalServer& server, int count) {
    std::vector<std::string> ids;
    for (int i = 0; i < count; ++i) {
      ids.push_back(Create(server));
      for (int layer = 0; layer < kLayers; ++layer) {
        const Answer answer = Step(server, ids.back(), i, layer, 0, kPromptTokens);
        EXPECT_TRUE(answer.status.ok()) << i << ": " << answer.status.error_message();
      }
    }
    return ids;
  }

  LocalServer tight_{WithCache(2 * kMiB, 16 * kMiB)};
  LocalServer roomy_{WithCache(64 * kMiB, 0)};
};

TEST_F(HostCacheE2eTest, WithoutHostMemoryAFullCacheRefuses) {
  LocalServer server(WithCache(2 * kMiB, 0));
  FillWith(server, 4);
  const Answer refused = Step(server, Create(server), 9, 0, 0, kPromptTokens);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailOf(refused.status).reason(), v1::REASON_CACHE_FULL);
}

TEST_F(HostCacheE2eTest, SequencesComeAndGoAndAnswerTheSame) {
  const std::vector<std::string> tight = FillWith(tight_, kSequences);
  const std::vector<std::string> roomy = FillWith(roomy_, kSequences);
  EXPECT_GT(Get(tight_, tight.front()).host_pages(), 0);
  EXPECT_EQ(Get(tight_, tight.front()).device_pages(), 0);
  EXPECT_EQ(Get(tight_, tight.back()).host_pages(), 0);
  // The first round finds every sequence's pages away; then in an order that never fits.
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < kSequences; ++i) {
      const auto at = static_cast<std::size_t>(round == 1 ? kSequences - 1 - i : i);
      for (int layer = 0; layer < kLayers; ++layer) {
        const int seed = static_cast<int>(at);
        const Answer got = Step(tight_, tight[at], seed, layer, kPromptTokens + round * 3, 3);
        ASSERT_TRUE(got.status.ok()) << got.status.error_message();
        const Answer expected = Step(roomy_, roomy[at], seed, layer, kPromptTokens + round * 3, 3);
        ASSERT_FALSE(expected.o.empty());
        EXPECT_TRUE(got.o == expected.o) << "sequence " << at << " layer " << layer;
      }
    }
  }
  const auto snapshot = tight_.server->GetSnapshot();
  EXPECT_GT(snapshot.moved_in_bytes, 8 * kMiB);
  EXPECT_GE(snapshot.moved_out_bytes, snapshot.moved_in_bytes);
  EXPECT_EQ(roomy_.server->GetSnapshot().moved_out_bytes, 0);
  for (const std::string& id : tight) Delete(tight_, id);
  EXPECT_EQ(tight_.server->GetSnapshot().host_used_bytes, 0);
  EXPECT_EQ(tight_.server->GetSnapshot().used_bytes, 0);
}

TEST_F(HostCacheE2eTest, ForksAndRollbacksFindWhatMovedAway) {
  const std::vector<std::string> tight = FillWith(tight_, kSequences);
  const std::vector<std::string> roomy = FillWith(roomy_, kSequences);
  ASSERT_GT(Get(tight_, tight[0]).host_pages(), 0);
  std::string tight_child, roomy_child;
  ASSERT_TRUE(Fork(tight_, tight[0], tight_child).ok());
  ASSERT_TRUE(Fork(roomy_, roomy[0], roomy_child).ok());
  EXPECT_EQ(Get(tight_, tight[0]).host_pages(), 0);
  EXPECT_GT(Get(tight_, tight[0]).shared_pages(), 0);

  // Cut while it lies in host memory: those pages are free there, and what is left comes back.
  const std::int64_t pages = Get(tight_, tight[1]).host_pages();
  ASSERT_GT(pages, 0);
  ASSERT_TRUE(Truncate(tight_, tight[1], 40, 5));
  ASSERT_TRUE(Truncate(roomy_, roomy[1], 40, 5));
  EXPECT_EQ(Get(tight_, tight[1]).host_pages(), pages / 4);  // two of eight pages a layer

  for (int layer = 0; layer < kLayers; ++layer) {
    EXPECT_TRUE(Step(tight_, tight_child, 50, layer, kPromptTokens, 1).o ==
                Step(roomy_, roomy_child, 50, layer, kPromptTokens, 1).o);
    EXPECT_TRUE(Step(tight_, tight[0], 51, layer, kPromptTokens, 1).o ==
                Step(roomy_, roomy[0], 51, layer, kPromptTokens, 1).o);
    EXPECT_TRUE(Step(tight_, tight[1], 52, layer, 40, 2, 5).o ==
                Step(roomy_, roomy[1], 52, layer, 40, 2, 5).o);
  }
}

TEST_F(HostCacheE2eTest, AFullHostMemoryRefusesAndKeepsWhatItHas) {
  LocalServer server(WithCache(2 * kMiB, 2 * kMiB));
  const std::vector<std::string> ids = FillWith(server, 8);
  const Answer refused = Step(server, Create(server), 9, 0, 0, kPromptTokens);
  EXPECT_EQ(DetailOf(refused.status).reason(), v1::REASON_CACHE_FULL);
  const std::vector<std::string> roomy = FillWith(roomy_, 8);
  // One sequence less, and those that had to wait come back.
  Delete(server, ids[7]);
  for (std::size_t i = 0; i < 7; ++i) {
    const int seed = static_cast<int>(i);
    const Answer got = Step(server, ids[i], seed, 0, kPromptTokens - 8, 8);  // a repeat
    ASSERT_TRUE(got.status.ok()) << got.status.error_message();
    EXPECT_TRUE(got.o == Step(roomy_, roomy[i], seed, 0, kPromptTokens - 8, 8).o);
  }
}

// Pages move while other sequences run; a refusal changes nothing and is asked again.
TEST_F(HostCacheE2eTest, ManyClientsAtOnceGetTheirOwnAnswers) {
  constexpr int kClients = 5;
  constexpr int kEach = 3;
  constexpr int kRounds = 8;
  std::atomic<int> wrong{0}, failed{0};
  const auto client = [&](int number) {
    std::vector<std::string> tight, roomy;
    for (int i = 0; i < kEach; ++i) {
      tight.push_back(Create(tight_));
      roomy.push_back(Create(roomy_));
    }
    std::vector<std::int64_t> length(kEach, 0);
    for (int round = 0; round < kRounds; ++round) {
      for (int i = 0; i < kEach; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const std::int32_t tokens = round == 0 ? kPromptTokens : 1 + round % 3;
        for (int layer = 0; layer < kLayers; ++layer) {
          const int seed = 100 * number + i;
          Answer got = Step(tight_, tight[at], seed, layer, length[at], tokens);
          for (int tries = 0;
               tries < 2000 && got.status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
               ++tries) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            got = Step(tight_, tight[at], seed, layer, length[at], tokens);
          }
          if (!got.status.ok()) ++failed;
          const Answer expected = Step(roomy_, roomy[at], seed, layer, length[at], tokens);
          if (got.o == expected.o) continue;
          ++wrong;
          ADD_FAILURE() << "client " << number << ", sequence " << i << ", round " << round
                        << ", layer " << layer << ": differs by up to "
                        << LargestDifference(got.o, expected.o);
        }
        length[at] += tokens;
      }
    }
  };
  std::vector<std::thread> clients;
  for (int number = 0; number < kClients; ++number) clients.emplace_back(client, number);
  for (std::thread& thread : clients) thread.join();
  EXPECT_EQ(failed.load(), 0);
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_GT(tight_.server->GetSnapshot().moved_in_bytes, 0);
}

TEST_F(HostCacheE2eTest, AReservationStays) {
  v1::CreateSequenceRequest request = OneLayer();
  request.set_head_dim(kHeadDim);
  request.set_reserve_tokens(kPromptTokens);
  std::string reserved;
  ASSERT_TRUE(testing::Create(tight_, request, &reserved).ok());
  ASSERT_TRUE(Step(tight_, reserved, 1, 0, 0, kPromptTokens).status.ok());
  const std::vector<std::string> others = FillWith(tight_, kSequences);
  EXPECT_EQ(Get(tight_, reserved).host_pages(), 0);
  EXPECT_GT(Get(tight_, reserved).device_pages(), 0);

  // A new one finds room, too: for all but what is reserved already.
  EXPECT_GT(Get(tight_, others.back()).device_pages(), 0);
  request.set_reserve_tokens((64 - kPromptTokens / 32) * 32);
  std::string all_the_rest;
  EXPECT_TRUE(testing::Create(tight_, request, &all_the_rest).ok());
  EXPECT_EQ(Get(tight_, others.back()).device_pages(), 0);
  const Answer refused = Step(tight_, others[0], 0, 0, kPromptTokens, 1);
  EXPECT_EQ(DetailOf(refused.status).reason(), v1::REASON_CACHE_FULL);
}

}  // namespace
}  // namespace attnd::testing
