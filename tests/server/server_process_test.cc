// What shows only from outside of the process: exit codes, signals, its memory.
#include "tests/support/server_process.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "attnd/v1/attention.grpc.pb.h"

namespace attnd {
namespace {

using ::testing::HasSubstr;
using testing::ServerProcess;

std::unique_ptr<v1::AttentionService::Stub> StubOf(const std::string& address) {
  return v1::AttentionService::NewStub(
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
}

grpc::Status GetInfo(v1::AttentionService::Stub& stub) {
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  return stub.GetServerInfo(&context, {}, &info);
}

TEST(ServerProcessTest, ExitsCleanlyOnSigtermThoughClientsHoldStreams) {
  ServerProcess server(ATTND_BINARY, {"--lame_duck=100ms"});
  const auto address = server.AwaitServing();
  ASSERT_TRUE(address.has_value()) << server.log();
  const auto stub = StubOf(*address);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReaderWriter<v1::DecodeRequest, v1::DecodeResponse>>>
      streams;
  for (int i = 0; i < 50; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    streams.push_back(stub->DecodeStream(contexts.back().get()));
    v1::DecodeResponse response;
    ASSERT_TRUE(streams.back()->Write({}));
    ASSERT_TRUE(streams.back()->Read(&response)) << "answered: the request is not valid";
  }
  const auto begin = std::chrono::steady_clock::now();
  server.Signal(SIGTERM);
  for (auto& stream : streams) {
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  EXPECT_EQ(server.AwaitExit(), 0) << server.log();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST(ServerProcessTest, ASecondSignalEndsItAtOnce) {
  ServerProcess server(ATTND_BINARY, {"--lame_duck=10s"});
  ASSERT_TRUE(server.AwaitServing().has_value()) << server.log();
  const auto begin = std::chrono::steady_clock::now();
  server.Signal(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // two at once may merge into one
  server.Signal(SIGTERM);
  EXPECT_EQ(server.AwaitExit(), 1) << server.log();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_THAT(server.log(), HasSubstr("second signal: exiting at once"));
}

TEST(ServerProcessTest, ASecondServerOnThePortFailsNamingIt) {
  ServerProcess first(ATTND_BINARY, {});
  const auto address = first.AwaitServing();
  ASSERT_TRUE(address.has_value()) << first.log();
  ServerProcess second(ATTND_BINARY, {"--listen=" + *address});
  EXPECT_EQ(second.AwaitExit(), 1);
  EXPECT_THAT(second.log(), HasSubstr("cannot listen on " + *address));
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(GetInfo(*StubOf(*address)).ok());
}

TEST(ServerProcessTest, BadFlagsHaveAnExitCodeOfTheirOwn) {
  for (const char* flag : {"--no_such_flag", "--listen=nowhere", "--threads=-3"}) {
    ServerProcess server(ATTND_BINARY, {flag});
    EXPECT_EQ(server.AwaitExit(), 2) << flag << ": " << server.log();
    EXPECT_THAT(server.log(), HasSubstr(std::string(flag).substr(2, 5)));
  }
}

// Sanitizers multiply what a process needs.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMemoryIsMeaningful = false;
#else
constexpr bool kMemoryIsMeaningful = true;
#endif

TEST(ServerProcessTest, ACompressedMessageDoesNotInflate) {
  if (!kMemoryIsMeaningful) GTEST_SKIP() << "memory figures need a build without sanitizers";
  ServerProcess server(ATTND_BINARY, {});
  const auto address = server.AwaitServing();
  ASSERT_TRUE(address.has_value()) << server.log();
  const auto stub = StubOf(*address);
  ASSERT_TRUE(GetInfo(*stub).ok());
  const std::int64_t before = server.peak_resident_bytes();
  v1::AttendRequest zeros;  // 512 MiB that deflate to half a MiB
  zeros.mutable_q()->set_data(std::string(std::size_t{512} << 20, '\0'));
  grpc::ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  v1::AttendResponse response;
  const auto status = stub->Attend(&context, zeros, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << status.error_message();
  EXPECT_LT(server.peak_resident_bytes() - before, std::int64_t{64} << 20);
  EXPECT_TRUE(GetInfo(*stub).ok());
}

TEST(ServerProcessTest, ShapesThatOverflowCostNoMemory) {
  if (!kMemoryIsMeaningful) GTEST_SKIP() << "memory figures need a build without sanitizers";
  ServerProcess server(ATTND_BINARY, {});
  const auto address = server.AwaitServing();
  ASSERT_TRUE(address.has_value()) << server.log();
  const auto stub = StubOf(*address);
  ASSERT_TRUE(GetInfo(*stub).ok());
  const std::int64_t before = server.peak_resident_bytes();
  for (int exponent = 0; exponent < 63; ++exponent) {
    v1::AttendRequest request;
    for (v1::Tensor* tensor : {request.mutable_q(), request.mutable_k(), request.mutable_v()}) {
      tensor->set_data_type(v1::DATA_TYPE_FP16);
      tensor->add_shape(std::int64_t{1} << exponent);
      tensor->add_shape(std::int64_t{1} << (63 - exponent) / 2);
      tensor->add_shape(std::int64_t{1} << (64 - exponent) / 2);
      tensor->set_data("");
    }
    grpc::ClientContext context;
    v1::AttendResponse response;
    EXPECT_EQ(stub->Attend(&context, request, &response).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_LT(server.peak_resident_bytes() - before, std::int64_t{10} << 20);
}

}  // namespace
}  // namespace attnd
