#include "server/decode_stream.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/await.h"
#include "tests/support/local_server.h"
#include "tests/support/wire_messages.h"

namespace attnd {
namespace {

using testing::Await;
using testing::DecodeRequestOf;
using testing::DetailOf;
using ::testing::Each;
using ::testing::FloatNear;
using testing::FloatsOf;
using testing::LocalServer;
using testing::SmallConfig;

using Stream = grpc::ClientReaderWriter<v1::DecodeRequest, v1::DecodeResponse>;

v1::DecodeRequest Numbered(v1::DecodeRequest request, std::uint64_t request_id) {
  request.set_request_id(request_id);
  return request;
}

TEST(DecodeStreamRpcTest, AnswersEveryRequestAndEndsOk) {
  LocalServer local;
  const std::string id = local.CreateSequence();
  grpc::ClientContext context;
  auto stream = local.stub->DecodeStream(&context);
  constexpr int kSteps = 200;  // several times max_in_flight_per_stream
  std::thread writer([&] {
    for (int i = 0; i < kSteps; ++i) {
      ASSERT_TRUE(stream->Write(Numbered(DecodeRequestOf(id, i, 2.0F), i)));
    }
    stream->WritesDone();
  });
  std::set<std::uint64_t> answered;
  v1::DecodeResponse response;
  while (stream->Read(&response)) {
    EXPECT_EQ(response.status().code(), 0) << response.status().message();
    EXPECT_THAT(FloatsOf(response.o()), Each(FloatNear(2.0F, 1e-5F)));
    EXPECT_TRUE(answered.insert(response.request_id()).second);
  }
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(answered.size(), static_cast<std::size_t>(kSteps));
  EXPECT_TRUE(local.AwaitIdle());
}

TEST(DecodeStreamRpcTest, AnInvalidRequestIsAnsweredAndTheStreamGoesOn) {
  LocalServer local;
  const std::string id = local.CreateSequence();
  grpc::ClientContext context;
  auto stream = local.stub->DecodeStream(&context);
  auto invalid = Numbered(DecodeRequestOf(id, 0, 1), 7);
  invalid.mutable_q()->mutable_data()->pop_back();
  auto unknown = Numbered(DecodeRequestOf(id, 0, 1), 8);
  unknown.mutable_steps(0)
      ->GetReflection()
      ->MutableUnknownFields(unknown.mutable_steps(0))
      ->AddVarint(99, 1);
  v1::DecodeResponse response;
  ASSERT_TRUE(stream->Write(invalid));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.request_id(), 7U);
  EXPECT_EQ(response.status().code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(response.status().detail().field(), "q.data");
  ASSERT_TRUE(stream->Write(unknown));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.request_id(), 8U);
  EXPECT_EQ(response.status().code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(response.status().detail().reason(), v1::REASON_UNKNOWN_FIELD);
  ASSERT_TRUE(stream->Write(Numbered(DecodeRequestOf(id, 0, 1), 9)));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.request_id(), 9U);
  EXPECT_EQ(response.status().code(), 0) << response.status().message();
  stream->WritesDone();
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(DecodeStreamRpcTest, UnparsableBytesEndTheStreamAfterEarlierAnswers) {
  LocalServer local;
  const std::string id = local.CreateSequence();
  grpc::GenericStub stub(local.channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  auto stream = stub.PrepareCall(&context, "/attnd.v1.AttentionService/DecodeStream", &queue);
  const auto await = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    EXPECT_TRUE(queue.Next(&tag, &ok));
    return ok;
  };
  stream->StartCall(nullptr);
  ASSERT_TRUE(await());
  stream->Write(testing::SlicedBuffer(DecodeRequestOf(id, 0, 1).SerializeAsString(), 1000),
                nullptr);
  ASSERT_TRUE(await());
  stream->Write(testing::SlicedBuffer("\x0A\xFF", 10), nullptr);
  ASSERT_TRUE(await());
  grpc::ByteBuffer reply;
  stream->Read(&reply, nullptr);
  ASSERT_TRUE(await()) << "the valid request's answer";
  stream->Read(&reply, nullptr);
  EXPECT_FALSE(await());
  grpc::Status status;
  stream->Finish(&status, nullptr);
  ASSERT_TRUE(await());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailOf(status).reason(), v1::REASON_INVALID_FIELD);
  queue.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue.Next(&tag, &ok)) {
  }
  EXPECT_TRUE(local.AwaitIdle());
}

TEST(DecodeStreamRpcTest, ReadsNoMoreThanTheInFlightLimit) {
  ServerConfig config = SmallConfig();
  config.max_in_flight_per_stream = 4;
  LocalServer local(config);
  std::vector<std::string> ids;
  for (int i = 0; i < 12; ++i) ids.push_back(local.CreateSequence());
  local.backend.Hold();
  grpc::ClientContext context;
  auto stream = local.stub->DecodeStream(&context);
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(stream->Write(Numbered(DecodeRequestOf(ids[i], 0, 1), i)));
  }
  const auto open = [&local] {
    const auto snapshot = local.server->GetSnapshot();
    return snapshot.queue_requests + snapshot.running_requests;
  };
  EXPECT_TRUE(Await([&] { return open() >= 4; }));
  // A further message would be admitted as soon as it is read: give it every chance.
  for (int i = 0; i < 50; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_LE(open(), 4);
  }
  local.backend.Release();
  stream->WritesDone();
  v1::DecodeResponse response;
  int answers = 0;
  while (stream->Read(&response)) ++answers;
  EXPECT_EQ(answers, 12);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(DecodeStreamRpcTest, ACancelledStreamDropsItsQueuedWork) {
  LocalServer local;
  std::vector<std::string> ids;
  for (int i = 0; i < 40; ++i) ids.push_back(local.CreateSequence());
  local.backend.Hold();
  // Two batches are in flight: what comes after them waits in the queue.
  std::vector<std::thread> running;
  for (int i = 0; i < 2; ++i) {
    running.emplace_back([&local] {
      grpc::ClientContext context;
      v1::AttendResponse response;
      EXPECT_TRUE(local.stub->Attend(&context, testing::AttendRequestOf(1, 1, 1), &response).ok());
    });
    local.backend.AwaitBatches(i + 1);
  }
  const auto await_queue = [&local](std::int64_t requests) {
    EXPECT_TRUE(Await([&] { return local.server->GetSnapshot().queue_requests == requests; }));
  };
  grpc::ClientContext context;
  auto stream = local.stub->DecodeStream(&context);
  for (const auto& id : ids) ASSERT_TRUE(stream->Write(DecodeRequestOf(id, 0, 1)));
  await_queue(40);
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  await_queue(0);
  local.backend.Release();
  for (auto& call : running) call.join();
  EXPECT_TRUE(local.AwaitIdle());
  EXPECT_EQ(local.backend.batches(), 2) << "nothing was launched for a client that is gone";
}

TEST(DecodeStreamRpcTest, RequestsOfAnExpiredStreamAreDropped) {
  LocalServer local;
  const std::string id = local.CreateSequence();
  local.backend.Hold();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
  auto stream = local.stub->DecodeStream(&context);
  ASSERT_TRUE(stream->Write(DecodeRequestOf(id, 0, 1)));
  local.backend.AwaitBatches(1);  // one that is late on arrival would be answered
  v1::DecodeResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  local.backend.Release();
  EXPECT_TRUE(local.AwaitIdle());
}

TEST(DecodeStreamRpcTest, StopAnswersWhatRunsAndEndsIdleStreams) {
  LocalServer local;
  const std::string id = local.CreateSequence();
  local.backend.Hold();
  grpc::ClientContext context;
  auto stream = local.stub->DecodeStream(&context);
  ASSERT_TRUE(stream->Write(Numbered(DecodeRequestOf(id, 0, 5), 3)));
  local.backend.AwaitBatches(1);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<Stream>> idle;
  for (int i = 0; i < 50; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    idle.push_back(local.stub->DecodeStream(contexts.back().get()));
  }
  EXPECT_TRUE(Await([&] { return local.server->live_calls() >= 51; }));
  std::thread stopper([&] { local.server->Stop(); });
  local.backend.Release();
  v1::DecodeResponse response;
  ASSERT_TRUE(stream->Read(&response)) << "admitted work is answered";
  EXPECT_EQ(response.request_id(), 3U);
  EXPECT_THAT(FloatsOf(response.o()), Each(FloatNear(5.0F, 1e-5F)));
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  for (auto& each : idle) EXPECT_EQ(each->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  stopper.join();
  EXPECT_EQ(local.server->live_calls(), 0);
}

}  // namespace
}  // namespace attnd
