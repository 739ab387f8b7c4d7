// Memory, threads and descriptors of a server in a process of its own, under clients that come, go
// wrong and vanish. Nothing of the clients is counted.
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "attnd/v1/attention.grpc.pb.h"
#include "tests/support/local_server.h"
#include "tests/support/raw_stream.h"
#include "tests/support/server_process.h"

namespace attnd::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

using Stub = v1::AttentionService::Stub;

constexpr char kAttnd[] = ATTND_BINARY;
constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// Freed blocks stay with a sanitizer.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMemoryIsMeaningful = false;
#else
constexpr bool kMemoryIsMeaningful = true;
#endif

// Over a connection of its own.
std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

std::int64_t EntriesOf(const ServerProcess& server, const char* folder) {
  std::int64_t entries = 0;
  const auto path = "/proc/" + std::to_string(server.pid()) + "/" + folder;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path)) ++entries;
  return entries;
}

template <typename Condition>
bool Await(Condition condition) {
  const auto give_up = steady_clock::now() + seconds(20);
  while (!condition()) {
    if (steady_clock::now() > give_up) return false;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return true;
}

v1::GetServerInfoResponse InfoOf(Stub& stub) {
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  EXPECT_TRUE(stub.GetServerInfo(&context, {}, &info).ok());
  return info;
}

// A bad message first, then up to 1 GiB that the client sends all the same.
TEST(MemoryCasesTest, ClientsThatSendOnAfterABadMessageCostNothing) {
  if (!kMemoryIsMeaningful) GTEST_SKIP() << "memory figures need a build without sanitizers";
  ServerProcess server(kAttnd, {});
  const auto address = server.AwaitServing();
  ASSERT_TRUE(address) << server.log();
  const auto channel = Connect(*address);
  const std::string chunk(kMiB, 'x');
  constexpr int kWarmUp = 10, kRounds = 200;
  std::int64_t before = 0;
  for (int round = 0; round < kWarmUp + kRounds; ++round) {
    if (round == kWarmUp) before = server.resident_bytes();
    const auto begin = steady_clock::now();
    RawStream stream(channel);
    ASSERT_TRUE(stream.Write("\x0A\xFF"));
    int chunks = 0;
    while (chunks < 1024 && stream.Write(chunk)) ++chunks;
    ASSERT_LT(chunks, 64) << "the client hears of it late";
    ASSERT_EQ(stream.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    ASSERT_LT(steady_clock::now() - begin, seconds(5));
  }
  EXPECT_LE(server.peak_resident_bytes() - before, 64 * kMiB);
  EXPECT_LE(server.resident_bytes() - before, 10 * kMiB);
}

// Connects, opens a sequence, fills 128 tokens, decodes 8 and vanishes, half of them in mid-call.
void ConnectAndVanish(const std::string& address, bool in_mid_call) {
  const auto stub = v1::AttentionService::NewStub(Connect(address));
  v1::CreateSequenceRequest create;
  create.set_num_layers(1);
  create.set_num_heads(2);
  create.set_num_kv_heads(2);
  create.set_head_dim(4);
  create.set_data_type(v1::DATA_TYPE_FP32);
  v1::CreateSequenceResponse created;
  grpc::ClientContext create_context;
  const auto status = stub->CreateSequence(&create_context, create, &created);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const auto step = [&created](std::int64_t position, std::int32_t num_tokens) {
    v1::DecodeRequest request = DecodeRequestOf(created.sequence_id(), position, 1);
    request.mutable_steps(0)->set_num_tokens(num_tokens);
    const auto tensors = AttendRequestOf(num_tokens, num_tokens, 1);
    *request.mutable_q() = tensors.q();
    *request.mutable_k() = tensors.k();
    *request.mutable_v() = tensors.v();
    return request;
  };
  constexpr int kPrompt = 128, kSteps = 8;
  for (int i = 0; i <= kSteps; ++i) {
    grpc::ClientContext context;
    v1::DecodeResponse response;
    const auto request = i == 0 ? step(0, kPrompt) : step(kPrompt + i - 1, 1);
    ASSERT_TRUE(stub->Decode(&context, request, &response).ok());
  }
  grpc::ClientContext context;
  const auto stream = stub->DecodeStream(&context);
  stream->Write(step(kPrompt + kSteps, 1));
  if (!in_mid_call) {
    v1::DecodeResponse response;
    EXPECT_TRUE(stream->Read(&response));
  }
  context.TryCancel();
  stream->Finish();
}

TEST(MemoryCasesTest, TwoThousandClientsThatVanishLeaveNothing) {
  ServerProcess server(kAttnd, {"--default_lease=200ms"});
  const auto address = server.AwaitServing();
  ASSERT_TRUE(address) << server.log();
  std::int64_t threads = 0, descriptors = 0, resident = 0;
  for (int cycle = 1; cycle <= 2'000; ++cycle) {
    ConnectAndVanish(*address, cycle % 2 == 0);
    if (cycle == 10) {
      threads = EntriesOf(server, "task");
      descriptors = EntriesOf(server, "fd");
    }
    if (cycle == 200) resident = server.resident_bytes();
  }
  if (kMemoryIsMeaningful) {
    EXPECT_LE(server.resident_bytes() - resident, 8 * kMiB);
  }
  // Each client's connection is closed a moment after it has gone.
  EXPECT_TRUE(Await([&] { return EntriesOf(server, "fd") <= descriptors; }))
      << EntriesOf(server, "fd") << " descriptors, were " << descriptors;
  EXPECT_TRUE(Await([&] { return EntriesOf(server, "task") <= threads; }))
      << EntriesOf(server, "task") << " threads, were " << threads;
  const auto stub = v1::AttentionService::NewStub(Connect(*address));
  EXPECT_TRUE(Await([&] {
    const auto cache = InfoOf(*stub).cache();
    return cache.free_pages() == cache.pages();
  })) << "every page of every sequence is free again";
  server.Signal(SIGTERM);
  EXPECT_EQ(server.AwaitExit(), 0);
}

}  // namespace
}  // namespace attnd::testing
