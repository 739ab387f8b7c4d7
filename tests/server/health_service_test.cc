#include "server/health_service.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/message_bytes.h"

namespace attnd {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using State = HealthState::State;

class HealthServiceTest : public ::testing::Test {
 protected:
  HealthServiceTest() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = Health::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                                grpc::InsecureChannelCredentials()));
  }

  grpc::Status Check(const std::string& name, HealthCheckResponse& response) {
    grpc::ClientContext context;
    HealthCheckRequest request;
    request.set_service(name);
    return stub_->Check(&context, request, &response);
  }

  // A Watch with the statuses that it received.
  struct Watch {
    Watch(Health::Stub& stub, const std::string& name) {
      HealthCheckRequest request;
      request.set_service(name);
      reader = stub.Watch(&context, request);
    }
    // UNKNOWN where the stream has ended.
    HealthCheckResponse::ServingStatus Next() {
      HealthCheckResponse response;
      return reader->Read(&response) ? response.status() : HealthCheckResponse::UNKNOWN;
    }
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<HealthCheckResponse>> reader;
  };

  HealthState state_;
  OpenStreams streams_;
  HealthService service_{state_, streams_};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Health::Stub> stub_;
};

TEST_F(HealthServiceTest, CheckFollowsTheState) {
  for (const char* name : {"", "attnd.v1.AttentionService"}) {
    HealthCheckResponse response;
    state_.Set(State::kNotServing);
    ASSERT_TRUE(Check(name, response).ok());
    EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
    state_.Set(State::kServing);
    ASSERT_TRUE(Check(name, response).ok());
    EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  }
}

TEST_F(HealthServiceTest, CheckOfAnUnknownServiceIsNotFound) {
  HealthCheckResponse response;
  EXPECT_EQ(Check("attnd.v1.Other", response).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(HealthServiceTest, RequestsOverTheSizeLimitAreRefused) {
  // A byte of tag and two of length before the name, which takes three times its size in an error.
  const std::string longest(kMaxNameMessageBytes - 3, '\n');
  HealthCheckResponse response;
  EXPECT_EQ(Check(longest, response).error_code(), grpc::StatusCode::NOT_FOUND);
  const std::string name = longest + "\n";
  const grpc::Status status = Check(name, response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "HealthCheckRequest: got 2049 bytes, need at most 2048");
  Watch watch(*stub_, name);
  EXPECT_EQ(watch.Next(), HealthCheckResponse::UNKNOWN);
  EXPECT_EQ(watch.reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(Check("", response).ok()) << "over the same connection";
}

TEST_F(HealthServiceTest, WatchTellsTheStateAtOnceAndEveryChange) {
  Watch watch(*stub_, "attnd.v1.AttentionService");
  EXPECT_EQ(watch.Next(), HealthCheckResponse::NOT_SERVING);
  state_.Set(State::kServing);
  EXPECT_EQ(watch.Next(), HealthCheckResponse::SERVING);
  state_.Set(State::kNotServing);
  EXPECT_EQ(watch.Next(), HealthCheckResponse::NOT_SERVING);
  watch.context.TryCancel();
  EXPECT_EQ(watch.reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(HealthServiceTest, WatchOfAnUnknownServiceStaysOpen) {
  Watch watch(*stub_, "attnd.v1.Other");
  EXPECT_EQ(watch.Next(), HealthCheckResponse::SERVICE_UNKNOWN);
  state_.Set(State::kServing);
  streams_.EndAll();
  EXPECT_EQ(watch.Next(), HealthCheckResponse::UNKNOWN) << "no other status before the end";
  EXPECT_EQ(watch.reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(HealthServiceTest, TheServerEndsOpenWatchesSoThatShutdownReturns) {
  state_.Set(State::kServing);
  std::vector<std::unique_ptr<Watch>> watches;
  for (int i = 0; i < 20; ++i) {
    watches.push_back(std::make_unique<Watch>(*stub_, ""));
    EXPECT_EQ(watches.back()->Next(), HealthCheckResponse::SERVING);
  }
  EXPECT_EQ(streams_.count(), 20);
  state_.Set(State::kNotServing);
  streams_.EndAll();
  server_->Shutdown();  // without a deadline: would wait for open calls for ever
  for (const auto& watch : watches) {
    EXPECT_EQ(watch->Next(), HealthCheckResponse::NOT_SERVING) << "told before the end";
    EXPECT_EQ(watch->Next(), HealthCheckResponse::UNKNOWN);
    EXPECT_EQ(watch->reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  EXPECT_EQ(streams_.count(), 0);
}

TEST_F(HealthServiceTest, AWatchAfterTheEndIsEndedAtOnce) {
  streams_.EndAll();
  Watch watch(*stub_, "");
  EXPECT_EQ(watch.Next(), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(watch.reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

// Watches come and go, are cancelled and ended by the server while the state changes all the time.
TEST_F(HealthServiceTest, ChangesCancelsAndEndsMayCoincide) {
  std::atomic<bool> stop{false};
  std::thread changes([&] {
    for (bool serving = false; !stop; serving = !serving) {
      state_.Set(serving ? State::kServing : State::kNotServing);
    }
  });
  std::vector<std::thread> clients;
  for (int client = 0; client < 4; ++client) {
    clients.emplace_back([&, client] {
      for (int i = 0; i < 50; ++i) {
        Watch watch(*stub_, "");
        for (int j = 0; j < (client + i) % 4; ++j) watch.Next();
        watch.context.TryCancel();
        watch.reader->Finish();
      }
    });
  }
  for (auto& client : clients) client.join();
  streams_.EndAll();
  stop = true;
  changes.join();
  server_->Shutdown();
  EXPECT_EQ(streams_.count(), 0);
}

}  // namespace
}  // namespace attnd
