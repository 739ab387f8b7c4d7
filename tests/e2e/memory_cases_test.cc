// Memory, threads and descriptors of a server in a process of its own, under clients that come, go
// wrong and vanish. Nothing of the clients is counted.
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "attnd/v1/attention.grpc.pb.h"
#include "tests/support/await.h"
#include "tests/support/local_server.h"
#include "tests/support/raw_stream.h"
#include "tests/support/server_process.h"

namespace attnd::testing {
namespace {

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

std::string ProcPath(const ServerProcess& server, const char* folder) {
  return "/proc/" + std::to_string(server.pid()) + "/" + folder;
}

std::int64_t Descriptors(const ServerProcess& server) {
  const std::filesystem::directory_iterator entries(ProcPath(server, "fd"));
  return std::distance(begin(entries), end(entries));
}

struct ThreadCounts {
  std::int64_t own = 0;   // named after the process
  std::int64_t grpc = 0;  // its timers and executors, a few of which come and go
};

ThreadCounts Threads(const ServerProcess& server) {
  ThreadCounts counts;
  for (const auto& task : std::filesystem::directory_iterator(ProcPath(server, "task"))) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    ++(name == "attnd" ? counts.own : counts.grpc);
  }
  return counts;
}

v1::GetServerInfoResponse InfoOf(Stub& stub) {
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  EXPECT_TRUE(stub.GetServerInfo(&context, {}, &info).ok());
  return info;
}

// One layer of 2 heads of 4, FP32. Its id.
std::string CreateSequence(Stub& stub) {
  v1::CreateSequenceRequest create;
  create.set_num_layers(1);
  create.set_num_heads(2);
  create.set_num_kv_heads(2);
  create.set_head_dim(4);
  create.set_data_type(v1::DATA_TYPE_FP32);
  v1::CreateSequenceResponse created;
  grpc::ClientContext context;
  const auto status = stub.CreateSequence(&context, create, &created);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return created.sequence_id();
}

// A bad message first, then up to 1 GiB that the client sends all the same. What the allocator
// keeps of it meanwhile is given back when the server has become quiet.
TEST(MemoryCasesTest, ClientsThatSendOnAfterABadMessageCostNothing) {
  if (!kMemoryIsMeaningful) GTEST_SKIP() << "memory figures need a build without sanitizers";
  ServerProcess server(kAttnd, {});
  const auto address = server.AwaitServing();
  ASSERT_TRUE(address) << server.log();
  const auto channel = Connect(*address);
  const std::string chunk(kMiB, 'x');
  const std::int64_t before = server.resident_bytes();
  for (int round = 0; round < 200; ++round) {
    const auto begin = steady_clock::now();
    const std::int64_t round_before = server.resident_bytes();
    RawStream stream(channel);
    ASSERT_TRUE(stream.Write("\x0A\xFF"));
    int chunks = 0;
    while (chunks < 1024 && stream.Write(chunk)) ++chunks;
    ASSERT_LT(chunks, 64) << "the client hears of it late";
    ASSERT_EQ(stream.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    ASSERT_LT(steady_clock::now() - begin, seconds(5));
    EXPECT_LE(server.resident_bytes() - round_before, 64 * kMiB);
  }
  std::printf("after the rounds + %.1f MiB\n",
              static_cast<double>(server.resident_bytes() - before) / kMiB);
  EXPECT_TRUE(Await([&] { return server.resident_bytes() - before <= 10 * kMiB; }))
      << (server.resident_bytes() - before) / kMiB << " MiB more than before";
  std::printf("when quiet + %.1f MiB\n",
              static_cast<double>(server.resident_bytes() - before) / kMiB);
}

struct Burst {
  int served = 0, refused = 0, other = 0;
  std::int64_t growth_bytes = 0;  // of the server's resident memory, at its peak
};

// A thousand calls of 1 MiB at once, while the device is busy with a few long ones.
void SendBurst(const std::vector<std::string>& flags, Burst& burst) {
  constexpr int kCalls = 1'000;
  ServerProcess server(kAttnd, flags);
  const auto address = server.AwaitServing();
  ASSERT_TRUE(address) << server.log();
  const auto stub = v1::AttentionService::NewStub(Connect(*address));
  std::mutex mutex;
  std::condition_variable changed;
  const auto count = [&](const grpc::Status& status) {
    const std::lock_guard lock(mutex);
    const bool full = status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
    ++(status.ok() ? burst.served : full ? burst.refused : burst.other);
    changed.notify_all();
  };
  const auto await = [&](const auto& condition) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, seconds(60), condition);
  };
  // Much work in few bytes.
  const v1::AttendRequest busy = AttendRequestOf(6'000, 6'000, 1);
  const v1::AttendRequest large = AttendRequestOf(1, kMiB / 2 / (2 * 4 * sizeof(float)), 1);
  ASSERT_GE(large.ByteSizeLong(), static_cast<std::size_t>(kMiB));
  for (const v1::AttendRequest* each : {&busy, &large}) {  // what kernels keep is there then
    grpc::ClientContext context;
    v1::AttendResponse response;
    ASSERT_TRUE(stub->Attend(&context, *each, &response).ok());
  }
  constexpr int kBusy = 6;
  std::vector<grpc::ClientContext> contexts(kBusy + kCalls);
  std::vector<v1::AttendResponse> responses(kBusy + kCalls);
  for (int i = 0; i < kBusy; ++i) {
    stub->async()->Attend(&contexts[i], &busy, &responses[i], count);
  }
  const std::int64_t before = server.peak_resident_bytes();
  for (int i = kBusy; i < kBusy + kCalls; ++i) {
    stub->async()->Attend(&contexts[i], &large, &responses[i], count);
  }
  EXPECT_TRUE(
      await([&burst] { return burst.served + burst.refused + burst.other == kBusy + kCalls; }));
  burst.growth_bytes = server.peak_resident_bytes() - before;
  std::printf("%d served, %d refused, + %.1f MiB\n", burst.served, burst.refused,
              static_cast<double>(burst.growth_bytes) / kMiB);
  grpc::ClientContext context;
  v1::AttendResponse response;
  EXPECT_TRUE(stub->Attend(&context, large, &response).ok()) << "the next one";
}

// Those that find the queue full are refused before their message is received: what grows is 64
// requests that wait, and 64 MiB for two that run and the beginnings of messages on their way.
TEST(MemoryCasesTest, ABurstOverAFullQueueStaysWithinTheQueuesMemory) {
  if (!kMemoryIsMeaningful) GTEST_SKIP() << "memory figures need a build without sanitizers";
  Burst burst;
  SendBurst({"--max_queue_requests=64", "--max_batch_sequences=1"}, burst);
  EXPECT_EQ(burst.other, 0);
  EXPECT_GT(burst.refused, 0) << "the queue was full";
  EXPECT_LE(burst.growth_bytes, (64 + 64) * kMiB);
}

// Launches take all that wait: two of them may hold as many messages each as the queue, and one
// copies what it reads.
TEST(MemoryCasesTest, ABurstThatRunsInLargeBatchesIsBoundedByQueueAndBatches) {
  if (!kMemoryIsMeaningful) GTEST_SKIP() << "memory figures need a build without sanitizers";
  Burst burst;
  SendBurst({"--max_queue_requests=64"}, burst);
  EXPECT_EQ(burst.other, 0);
  EXPECT_GT(burst.refused, 0) << "the queue was full";
  EXPECT_LE(burst.growth_bytes, (4 * 64 + 64) * kMiB);
}

// Messages of 640 MiB in all, each over the limit: gRPC receives such a message before it refuses
// it.
TEST(MemoryCasesTest, MessagesOverTheLimitAreReceivedWithinAQuota) {
  if (!kMemoryIsMeaningful) GTEST_SKIP() << "memory figures need a build without sanitizers";
  // The quota is the queue's 64 MiB and 64 MiB for what is on its way.
  ServerProcess server(kAttnd, {"--max_message_bytes=1MiB", "--max_queue_bytes=64MiB"});
  const auto address = server.AwaitServing();
  ASSERT_TRUE(address) << server.log();
  InfoOf(*v1::AttentionService::NewStub(Connect(*address)));
  const std::int64_t before = server.peak_resident_bytes();
  v1::AttendRequest request;
  request.mutable_q()->set_data(std::string(64 * kMiB, 'x'));
  std::vector<std::thread> callers;
  for (int i = 0; i < 10; ++i) {
    callers.emplace_back([&] {
      const auto stub = v1::AttentionService::NewStub(Connect(*address));
      grpc::ClientContext context;
      v1::AttendResponse response;
      EXPECT_EQ(stub->Attend(&context, request, &response).error_code(),
                grpc::StatusCode::RESOURCE_EXHAUSTED);
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_LE(server.peak_resident_bytes() - before, (128 + 64) * kMiB);
  InfoOf(*v1::AttentionService::NewStub(Connect(*address)));
}

// Fifty sequences whose clients are gone end by themselves, without a reaper that spins.
TEST(MemoryCasesTest, IdleSequencesEndWithoutWork) {
  ServerProcess server(kAttnd, {"--default_lease=1s"});
  const auto address = server.AwaitServing();
  ASSERT_TRUE(address) << server.log();
  {
    const auto stub = v1::AttentionService::NewStub(Connect(*address));
    for (int i = 0; i < 50; ++i) CreateSequence(*stub);
  }
  const double cpu = server.cpu_seconds();
  std::this_thread::sleep_for(seconds(3));
  EXPECT_LT(server.cpu_seconds() - cpu, 0.05 * 3) << "of one core";
  const auto stub = v1::AttentionService::NewStub(Connect(*address));
  grpc::ClientContext context;
  v1::ListSequencesResponse live;
  ASSERT_TRUE(stub->ListSequences(&context, {}, &live).ok());
  EXPECT_EQ(live.sequences_size(), 0);
}

// Connects, opens a sequence, fills 128 tokens, decodes 8 and vanishes, half of them in mid-call.
void ConnectAndVanish(const std::string& address, bool in_mid_call) {
  const auto stub = v1::AttentionService::NewStub(Connect(address));
  const std::string id = CreateSequence(*stub);
  const auto step = [&id](std::int64_t position, std::int32_t num_tokens) {
    v1::DecodeRequest request = DecodeRequestOf(id, position, 1);
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
  ThreadCounts threads;
  std::int64_t descriptors = 0, resident = 0;
  for (int cycle = 1; cycle <= 2'000; ++cycle) {
    ConnectAndVanish(*address, cycle % 2 == 0);
    if (cycle == 10) {
      threads = Threads(server);
      descriptors = Descriptors(server);
    }
    if (cycle == 200) resident = server.resident_bytes();
  }
  if (kMemoryIsMeaningful) {
    EXPECT_LE(server.resident_bytes() - resident, 8 * kMiB);
  }
  // Each client's connection is closed a moment after it has gone.
  EXPECT_TRUE(Await([&] { return Descriptors(server) <= descriptors; }))
      << Descriptors(server) << " descriptors, were " << descriptors;
  EXPECT_EQ(Threads(server).own, threads.own);
  EXPECT_LE(Threads(server).grpc, threads.grpc + 8);
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
