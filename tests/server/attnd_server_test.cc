// Start, limits of the transport, drain and stop of a whole server.
#include "server/attnd_server.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/support/await.h"
#include "tests/support/local_server.h"

namespace attnd {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using testing::AttendRequestOf;
using testing::Await;
using testing::DetailOf;
using ::testing::HasSubstr;
using testing::LocalServer;
using testing::PushbackOf;
using testing::SmallConfig;

grpc::Status Attend(LocalServer& local, const v1::AttendRequest& request,
                    v1::AttendResponse* response = nullptr) {
  grpc::ClientContext context;
  v1::AttendResponse ignored;
  return local.stub->Attend(&context, request, response != nullptr ? response : &ignored);
}

HealthCheckResponse::ServingStatus HealthOf(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::ClientContext context;
  HealthCheckResponse response;
  return Health::NewStub(channel)->Check(&context, {}, &response).ok()
             ? response.status()
             : HealthCheckResponse::UNKNOWN;
}

TEST(AttndServerTest, ServesOnlyAfterTheSelfTest) {
  std::promise<void> go;
  ServerHooks hooks;
  hooks.before_self_test = [&go] {
    go.get_future().wait();
    return absl::OkStatus();
  };
  LocalServer local(SmallConfig(), std::move(hooks));
  EXPECT_EQ(HealthOf(local.channel), HealthCheckResponse::NOT_SERVING);
  grpc::ClientContext context;
  v1::AttendResponse response;
  const auto refused = local.stub->Attend(&context, AttendRequestOf(1, 1, 1), &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(DetailOf(refused).reason(), v1::REASON_NOT_READY);
  EXPECT_GT(std::stoi(PushbackOf(context)), 0);
  go.set_value();
  ASSERT_TRUE(local.server->WaitUntilReady().ok());
  EXPECT_EQ(HealthOf(local.channel), HealthCheckResponse::SERVING);
  EXPECT_TRUE(Attend(local, AttendRequestOf(1, 1, 1)).ok()) << "the first call after SERVING";
}

TEST(AttndServerTest, AFailedSelfTestNeverServes) {
  ServerHooks hooks;
  hooks.before_self_test = [] { return absl::InternalError("the device is broken"); };
  LocalServer local(SmallConfig(), std::move(hooks));
  EXPECT_EQ(local.server->WaitUntilReady().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(HealthOf(local.channel), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Attend(local, AttendRequestOf(1, 1, 1)).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(AttndServerTest, RefusesAPortThatIsTaken) {
  LocalServer first;
  ServerConfig config = SmallConfig();
  config.listen = first.server->address();
  const auto second = AttndServer::Start(config);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(first.server->address()));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("--listen"));

  config = SmallConfig();
  config.admin_listen = "127.0.0.1:" + std::to_string(first.server->admin_port());
  const auto third = AttndServer::Start(config);
  ASSERT_FALSE(third.ok());
  EXPECT_THAT(std::string(third.status().message()), HasSubstr(config.admin_listen));

  // By a program that does not speak gRPC.
  const int other = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof name;
  ASSERT_EQ(bind(other, reinterpret_cast<sockaddr*>(&name), size), 0);
  ASSERT_EQ(listen(other, 1), 0);
  ASSERT_EQ(getsockname(other, reinterpret_cast<sockaddr*>(&name), &size), 0);
  config = SmallConfig();
  config.listen = "127.0.0.1:" + std::to_string(ntohs(name.sin_port));
  EXPECT_FALSE(AttndServer::Start(config).ok());
  close(other);
}

class AttndServerUnixSocketTest : public ::testing::Test {
 protected:
  AttndServerUnixSocketTest() { config_.listen = "unix:" + path_; }
  ~AttndServerUnixSocketTest() override { unlink(path_.c_str()); }

  const std::string path_ = "/tmp/attnd_server_test_" + std::to_string(getpid());
  ServerConfig config_ = SmallConfig();
};

TEST_F(AttndServerUnixSocketTest, ServesOnAPathAndRefusesASecondServer) {
  LocalServer local(config_);
  EXPECT_TRUE(Attend(local, AttendRequestOf(1, 1, 1)).ok());
  const auto second = AttndServer::Start(config_);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(path_));
  EXPECT_TRUE(Attend(local, AttendRequestOf(1, 1, 1)).ok()) << "the first one still answers";
}

TEST_F(AttndServerUnixSocketTest, TakesOverASocketThatNobodyServes) {
  const int stale = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  path_.copy(name.sun_path, sizeof name.sun_path - 1);
  ASSERT_EQ(bind(stale, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  close(stale);  // the path stays, as after a kill
  LocalServer local(config_);
  EXPECT_TRUE(Attend(local, AttendRequestOf(1, 1, 1)).ok());
}

TEST_F(AttndServerUnixSocketTest, LeavesOtherFilesAlone) {
  std::ofstream(path_) << "data";
  EXPECT_FALSE(AttndServer::Start(config_).ok());
  std::string content;
  std::ifstream(path_) >> content;
  EXPECT_EQ(content, "data");
}

TEST(AttndServerTest, TakesMessagesBeyondFourMebibytesUpToItsLimit) {
  ServerConfig config = SmallConfig();
  config.max_message_bytes = 16 << 20;
  LocalServer local(config);
  // 12 MiB in, 4 MiB out: 131,072 rows of 8 floats, one key each.
  constexpr std::int64_t kRows = 131'072;
  auto request = AttendRequestOf(kRows, kRows, 0.5F);
  for (int i = 0; i < 1024; ++i) {
    request.add_query_lengths(kRows / 1024);
    request.add_kv_lengths(kRows / 1024);
  }
  v1::AttendResponse response;
  const auto status = Attend(local, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.o().data().size(), std::size_t{4} << 20);

  const auto sized = [](std::int64_t bytes) {
    v1::AttendRequest padded;
    padded.mutable_q()->set_data(std::string(bytes, 'x'));
    while (static_cast<std::int64_t>(padded.ByteSizeLong()) > bytes) {
      padded.mutable_q()->mutable_data()->pop_back();
    }
    return padded;
  };
  EXPECT_EQ(Attend(local, sized(config.max_message_bytes)).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT)
      << "received, and found to be no tensor";
  EXPECT_EQ(Attend(local, sized(config.max_message_bytes + 1)).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(Attend(local, AttendRequestOf(1, 1, 1)).ok()) << "the connection still works";
}

TEST(AttndServerTest, CompressedMessagesAreNotInflated) {
  LocalServer local;
  ASSERT_TRUE(Attend(local, AttendRequestOf(1, 1, 1)).ok());
  v1::AttendRequest zeros;
  zeros.mutable_q()->set_data(std::string(std::size_t{200} << 20, '\0'));
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ClientContext context;
    context.set_compression_algorithm(algorithm);
    v1::AttendResponse response;
    const auto status = local.stub->Attend(&context, zeros, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << status.error_message();
  }
  EXPECT_TRUE(local.AwaitIdle());
  EXPECT_TRUE(Attend(local, AttendRequestOf(1, 1, 1)).ok());
}

TEST(AttndServerTest, StopFinishesAdmittedWorkAndRefusesNewWork) {
  ServerConfig config = SmallConfig();
  config.lame_duck = Milliseconds(300);
  LocalServer local(config);
  local.backend.Hold();
  std::vector<std::thread> admitted;
  for (int i = 0; i < 12; ++i) {
    admitted.emplace_back([&local] {
      const auto status = Attend(local, AttendRequestOf(1, 1, 1));
      EXPECT_TRUE(status.ok()) << status.error_message();
    });
  }
  EXPECT_TRUE(Await([&] { return local.server->live_calls() >= 12; }));
  grpc::ClientContext watch_context;
  HealthCheckResponse health;
  auto watch = Health::NewStub(local.channel)->Watch(&watch_context, {});
  ASSERT_TRUE(watch->Read(&health));
  EXPECT_EQ(health.status(), HealthCheckResponse::SERVING);

  std::thread stopper([&local] { local.server->Stop(); });
  ASSERT_TRUE(watch->Read(&health));
  EXPECT_EQ(health.status(), HealthCheckResponse::NOT_SERVING);
  grpc::ClientContext context;
  v1::AttendResponse response;
  const auto refused = local.stub->Attend(&context, AttendRequestOf(1, 1, 1), &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(DetailOf(refused).reason(), v1::REASON_DRAINING);
  EXPECT_EQ(PushbackOf(context), "300");
  local.backend.Release();
  for (auto& call : admitted) call.join();
  EXPECT_FALSE(watch->Read(&health));
  stopper.join();
  EXPECT_EQ(local.server->live_calls(), 0);
}

TEST(AttndServerTest, StopReturnsWithAnOpenReflectionStream) {
  LocalServer local;
  grpc::GenericStub stub(local.channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  auto stream = stub.PrepareCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  void* tag = nullptr;
  bool ok = false;
  stream->StartCall(nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  // list_services: field 7, one byte. The answer shows that the stream is being served.
  const grpc::Slice ask(std::string("\x3A\x01*"));
  stream->Write(grpc::ByteBuffer(&ask, 1), nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  grpc::ByteBuffer reply;
  stream->Read(&reply, nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  grpc::Slice services;
  ASSERT_TRUE(reply.DumpToSingleSlice(&services).ok());
  const std::string text(services.begin(), services.end());
  EXPECT_THAT(text, HasSubstr("attnd.v1.AttentionService"));
  EXPECT_THAT(text, HasSubstr("grpc.health.v1.Health"));
  const auto begin = std::chrono::steady_clock::now();
  local.server->Stop();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  grpc::Status status;
  stream->Finish(&status, nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_FALSE(status.ok());
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
}

TEST(AttndServerTest, RetireRefusesNewSequencesAndServesTheOldOnes) {
  LocalServer local;
  const std::string id = local.CreateSequence();
  local.server->BeginRetire();
  grpc::ClientContext context;
  v1::CreateSequenceRequest create;
  create.set_num_layers(1);
  create.set_num_heads(1);
  create.set_num_kv_heads(1);
  create.set_head_dim(8);
  create.set_data_type(v1::DATA_TYPE_FP32);
  v1::CreateSequenceResponse created;
  const auto refused = local.stub->CreateSequence(&context, create, &created);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(DetailOf(refused).reason(), v1::REASON_DRAINING);
  EXPECT_EQ(PushbackOf(context), "-1");
  grpc::ClientContext decode_context;
  v1::DecodeResponse decoded;
  EXPECT_TRUE(
      local.stub->Decode(&decode_context, testing::DecodeRequestOf(id, 0, 1), &decoded).ok());
}

TEST(AttndServerTest, StopsTwiceAndRestartsAtOnceOnTheSamePort) {
  ServerConfig config = SmallConfig();
  std::string address;
  {
    LocalServer local;
    address = local.server->address();
    EXPECT_TRUE(Attend(local, AttendRequestOf(1, 1, 1)).ok());
    std::thread other([&local] { local.server->Stop(); });
    local.server->Stop();
    other.join();
  }
  config.listen = address;
  LocalServer again(config);
  EXPECT_TRUE(Attend(again, AttendRequestOf(1, 1, 1)).ok());
}

}  // namespace
}  // namespace attnd
