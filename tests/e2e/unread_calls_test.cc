// Attend and Decode are admitted before their message is received: calls that send it late, never,
// or find no place for it.
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/local_server.h"
#include "tests/support/raw_stream.h"

namespace attnd::testing {
namespace {

std::shared_ptr<grpc::Channel> Connect(const LocalServer& local) {
  return grpc::CreateChannel(local.server->address(), grpc::InsecureChannelCredentials());
}

ServerConfig OnePlace() {
  ServerConfig config = SmallConfig();
  config.max_queue_requests = 1;
  return config;
}

TEST(UnreadCallsTest, ACallWithoutAPlaceIsRefusedBeforeItsMessage) {
  const LocalServer local(OnePlace());
  const std::string message = AttendRequestOf(3, 5, 1).SerializeAsString();
  for (const char* method : {"Attend", "Decode"}) {
    RawStream first(Connect(local), "Attend");  // holds the place, has sent nothing
    grpc::Status refused;
    // The first call's headers may still be on their way.
    for (int i = 0; i < 100 && refused.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED; ++i) {
      RawStream second(Connect(local), method);
      second.WritesDone();
      EXPECT_FALSE(second.Read());
      refused = second.Finish();
    }
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED)
        << refused.error_message();
    EXPECT_EQ(DetailOf(refused).reason(), v1::REASON_QUEUE_FULL);
    EXPECT_TRUE(DetailOf(refused).has_retry_delay());
    EXPECT_TRUE(first.Write(message));
    first.WritesDone();
    EXPECT_TRUE(first.Read());
    EXPECT_TRUE(first.Finish().ok());
  }
  EXPECT_TRUE(local.AwaitIdle());
}

TEST(UnreadCallsTest, ACallThatEndsWithoutAMessageIsInvalid) {
  const LocalServer local;
  for (const char* method : {"Attend", "Decode"}) {
    RawStream call(Connect(local), method);
    call.WritesDone();
    EXPECT_FALSE(call.Read());
    const grpc::Status status = call.Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    EXPECT_EQ(DetailOf(status).reason(), v1::REASON_INVALID_FIELD);
  }
  EXPECT_TRUE(local.AwaitIdle());
}

// Their places are free again at once.
TEST(UnreadCallsTest, CallsThatAreCancelledBeforeTheirMessageLeaveNothing) {
  const LocalServer local(OnePlace());
  for (int i = 0; i < 20; ++i) {
    RawStream call(Connect(local), i % 2 == 0 ? "Attend" : "Decode");
    call.Cancel();
    EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(local.AwaitIdle());
  grpc::ClientContext context;
  v1::AttendResponse response;
  EXPECT_TRUE(local.stub->Attend(&context, AttendRequestOf(3, 5, 1), &response).ok());
}

}  // namespace
}  // namespace attnd::testing
