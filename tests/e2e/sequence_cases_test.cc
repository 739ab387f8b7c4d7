// Faults in the life of sequences: slots, leases, ids, creation keys, pages that are not to be had.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "client/attention_client.h"
#include "tests/support/await.h"
#include "tests/support/local_server.h"

namespace attnd::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::FloatEq;
using ::testing::SizeIs;

v1::CreateSequenceRequest SmallSequence(milliseconds lease = milliseconds(0)) {
  v1::CreateSequenceRequest request;
  request.set_num_layers(1);
  request.set_num_heads(2);
  request.set_num_kv_heads(2);
  request.set_head_dim(4);
  request.set_data_type(v1::DATA_TYPE_FP32);
  if (lease.count() > 0) {
    request.mutable_lease()->set_seconds(lease.count() / 1'000);
    request.mutable_lease()->set_nanos(static_cast<int>(lease.count() % 1'000) * 1'000'000);
  }
  return request;
}

struct Answer {
  grpc::Status status;
  std::vector<float> o;
};

Answer Step(LocalServer& server, const std::string& id, std::int64_t position, float value) {
  grpc::ClientContext context;
  v1::DecodeResponse response;
  Answer answer;
  answer.status = server.stub->Decode(&context, DecodeRequestOf(id, position, value), &response);
  answer.o = FloatsOf(response.o());
  return answer;
}

grpc::Status Create(LocalServer& server, const v1::CreateSequenceRequest& request,
                    std::string& id) {
  grpc::ClientContext context;
  v1::CreateSequenceResponse response;
  grpc::Status status = server.stub->CreateSequence(&context, request, &response);
  id = response.sequence_id();
  return status;
}

grpc::Status Delete(LocalServer& server, const std::string& id) {
  grpc::ClientContext context;
  v1::DeleteSequencesRequest request;
  request.add_sequence_ids(id);
  v1::DeleteSequencesResponse response;
  return server.stub->DeleteSequences(&context, request, &response);
}

std::int64_t LiveSequences(const LocalServer& server) {
  const auto snapshot = server.server->GetSnapshot();
  return snapshot.sequences_active + snapshot.sequences_idle;
}

auto EightOf(float value) { return AllOf(SizeIs(8), Each(FloatEq(value))); }

// A cancelled step and an ended lease free one slot, not two.
TEST(SequenceCasesTest, CancelAndExpiryReleaseASlotOnce) {
  ServerConfig config = SmallConfig();
  config.max_sequences = 2;
  LocalServer server(config);
  std::string first;
  // Long enough for the step to arrive on a machine that has much else to do.
  ASSERT_TRUE(Create(server, SmallSequence(milliseconds(2'000)), first).ok());

  server.backend.Hold();
  const std::int64_t batches = server.backend.batches();
  grpc::ClientContext context;
  v1::DecodeResponse response;
  std::thread step([&] {
    const v1::DecodeRequest request = DecodeRequestOf(first, 0, 1);
    const grpc::Status status = server.stub->Decode(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  });
  server.backend.AwaitBatches(batches + 1);
  context.TryCancel();
  step.join();
  server.backend.Release();
  ASSERT_TRUE(Await([&] { return LiveSequences(server) == 0; }));

  std::string second;
  std::string third;
  std::string fourth;
  ASSERT_TRUE(Create(server, SmallSequence(), second).ok());
  ASSERT_TRUE(Create(server, SmallSequence(), third).ok());
  const grpc::Status refused = Create(server, SmallSequence(), fourth);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailOf(refused).reason(), v1::REASON_QUOTA);
  EXPECT_EQ(LiveSequences(server), 2);
  for (int position = 0; position < 100; ++position) {
    // The mean of equal values, up to the rounding of the weights.
    EXPECT_THAT(Step(server, second, position, 2).o, EightOf(2.0F));
    EXPECT_THAT(Step(server, third, position, 3).o, EightOf(3.0F));
  }
}

TEST(SequenceCasesTest, OneCreationKeyGivesOneSequence) {
  LocalServer server;
  for (int round = 0; round < 100; ++round) {
    v1::CreateSequenceRequest request = SmallSequence();
    std::string key = std::to_string(round);
    key.resize(16, '.');
    request.set_creation_key(key);
    std::string one;
    std::string two;
    std::thread other([&] { EXPECT_TRUE(Create(server, request, two).ok()); });
    EXPECT_TRUE(Create(server, request, one).ok());
    other.join();
    EXPECT_EQ(one, two);
    request.set_num_heads(4);
    std::string third;
    const grpc::Status differs = Create(server, request, third);
    EXPECT_EQ(differs.error_code(), grpc::StatusCode::ALREADY_EXISTS);
    EXPECT_EQ(DetailOf(differs).reason(), v1::REASON_CREATION_KEY);
  }
  EXPECT_EQ(LiveSequences(server), 100);
}

TEST(SequenceCasesTest, EqualRequestIdsAreHarmless) {
  LocalServer server;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 32; ++caller) {
    callers.emplace_back([&server, caller] {
      const std::string id = server.CreateSequence();
      v1::DecodeRequest request = DecodeRequestOf(id, 0, static_cast<float>(caller));
      request.set_request_id(7);
      grpc::ClientContext context;
      v1::DecodeResponse response;
      const grpc::Status status = server.stub->Decode(&context, request, &response);
      EXPECT_TRUE(status.ok()) << status.error_message();
      EXPECT_EQ(response.request_id(), 7U);
      EXPECT_EQ(FloatsOf(response.o()), std::vector<float>(8, static_cast<float>(caller)));
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST(SequenceCasesTest, IdleSequencesEndAndActiveOnesStay) {
  LocalServer server;
  std::string active;
  ASSERT_TRUE(Create(server, SmallSequence(milliseconds(400)), active).ok());
  for (int i = 0; i < 50; ++i) {
    std::string id;
    ASSERT_TRUE(Create(server, SmallSequence(milliseconds(300)), id).ok());
  }
  std::int64_t position = 0;
  EXPECT_TRUE(Await([&] {
    EXPECT_TRUE(Step(server, active, position++, 1).status.ok());
    return LiveSequences(server) == 1;
  }));
  for (int i = 0; i < 100; ++i) {  // well past its first lease
    EXPECT_TRUE(Step(server, active, position++, 1).status.ok());
    std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_EQ(LiveSequences(server), 1);
  EXPECT_NE(server.server->MetricsText().find("attnd_sequences_ended_total{reason=\"expired\"} 50"),
            std::string::npos);
}

TEST(SequenceCasesTest, UnknownEndedAndForeignIdsSayWhy) {
  LocalServer server;
  std::string expired;
  ASSERT_TRUE(Create(server, SmallSequence(milliseconds(50)), expired).ok());
  std::string deleted;
  ASSERT_TRUE(Create(server, SmallSequence(), deleted).ok());
  ASSERT_TRUE(Delete(server, deleted).ok());
  ASSERT_TRUE(Await([&] { return LiveSequences(server) == 0; }));
  std::string unknown = deleted;
  for (int i = 8; i < 24; ++i) unknown[i] = static_cast<char>(unknown[i] + 1 + i);
  std::string restarted = unknown;
  restarted[4] = static_cast<char>(restarted[4] + 1);
  std::string foreign = unknown;
  foreign[0] = static_cast<char>(foreign[0] + 1);
  const auto expect = [&](const std::string& id, grpc::StatusCode code, v1::Reason reason) {
    const grpc::Status status = Step(server, id, 0, 1).status;
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_EQ(DetailOf(status).reason(), reason);
  };
  expect(unknown, grpc::StatusCode::NOT_FOUND, v1::REASON_UNKNOWN_SEQUENCE);
  expect(deleted, grpc::StatusCode::NOT_FOUND, v1::REASON_DELETED);
  expect(expired, grpc::StatusCode::NOT_FOUND, v1::REASON_EXPIRED);
  expect(restarted, grpc::StatusCode::NOT_FOUND, v1::REASON_SERVER_RESTARTED);
  expect(foreign, grpc::StatusCode::FAILED_PRECONDITION, v1::REASON_OTHER_SERVER);
  EXPECT_EQ(LiveSequences(server), 0);  // no step ever makes a sequence
}

TEST(SequenceCasesTest, ManySequencesInARowNeverGoMissing) {
  LocalServer server;
  for (int i = 0; i < 850; ++i) {
    const std::string id = server.CreateSequence();
    for (int position = 0; position < 5; ++position) {
      const Answer answer = Step(server, id, position, 1);
      ASSERT_TRUE(answer.status.ok()) << i << ": " << answer.status.error_message();
    }
    ASSERT_TRUE(Delete(server, id).ok());
  }
}

// What cannot get pages is refused at once; what comes behind it is served.
TEST(SequenceCasesTest, AnUnservableRequestHoldsNobodyUp) {
  ServerConfig config = SmallConfig();
  config.cache_bytes = std::int64_t{2} << 20;
  config.page_tokens = 16;
  LocalServer server(config);
  // 2 kv heads x 128 x 4 bytes x 2 x 16 tokens: 32 KiB a page, 64 pages.
  v1::CreateSequenceRequest wide = SmallSequence();
  wide.set_head_dim(128);
  const auto prompt = [&](const std::string& id, int tokens) {
    v1::DecodeRequest request;
    v1::Step& step = *request.add_steps();
    step.set_sequence_id(id);
    step.set_num_tokens(tokens);
    for (v1::Tensor* tensor : {request.mutable_k(), request.mutable_v()}) {
      tensor->set_data_type(v1::DATA_TYPE_FP32);
      for (const int dimension : {tokens, 2, 128}) tensor->add_shape(dimension);
      tensor->set_data(std::string(static_cast<std::size_t>(tokens) * 2 * 128 * 4, '\0'));
    }
    grpc::ClientContext context;
    v1::DecodeResponse response;
    return server.stub->Decode(&context, request, &response);
  };
  std::string idle;
  ASSERT_TRUE(Create(server, wide, idle).ok());
  ASSERT_TRUE(prompt(idle, 160).ok());  // 10 pages
  std::string large;
  ASSERT_TRUE(Create(server, wide, large).ok());
  const grpc::Status refused = prompt(large, 960);  // 60 pages
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailOf(refused).reason(), v1::REASON_CACHE_FULL);
  for (int i = 0; i < 19; ++i) {
    std::string id;
    ASSERT_TRUE(Create(server, wide, id).ok());
    EXPECT_TRUE(prompt(id, 16).ok()) << i;
  }
  // More than the whole pool never fits: refused for good.
  const grpc::Status never = prompt(large, 1040);
  EXPECT_TRUE(never.error_code() == grpc::StatusCode::OUT_OF_RANGE ||
              never.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED)
      << never.error_message();
  EXPECT_FALSE(DetailOf(never).has_retry_delay());
}

}  // namespace
}  // namespace attnd::testing
