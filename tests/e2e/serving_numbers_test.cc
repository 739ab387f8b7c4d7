// Figures that an operator counts on: time to readiness, what a drain loses, what metrics cost.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/metrics.h"
#include "tests/support/exposition_parser.h"
#include "tests/support/local_calls.h"
#include "tests/support/local_server.h"
#include "tests/support/server_process.h"

namespace attnd {
namespace {

using std::chrono::steady_clock;
using testing::Exposition;
using testing::LocalServer;
using testing::ParseExposition;

double SecondsSince(steady_clock::time_point begin) {
  return std::chrono::duration<double>(steady_clock::now() - begin).count();
}

// The best of three: another process of this machine may be busy in one of them. With the
// bandwidth test that a server makes by default.
TEST(ServingNumbersTest, AServerIsReadyWithinThreeSeconds) {
  double best = 1e9;
  for (int round = 0; round < 3; ++round) {
    const auto begin = steady_clock::now();
    testing::ServerProcess server(ATTND_BINARY, {"--measure_ceilings=true", "--cache_bytes=4GiB"});
    ASSERT_TRUE(server.AwaitServing().has_value()) << server.log();
    best = std::min(best, SecondsSince(begin));
    server.Signal(SIGTERM);
    EXPECT_EQ(server.AwaitExit(), 0) << server.log();
  }
  std::printf("ready after %.2f s\n", best);
  EXPECT_LT(best, 3);
}

// One stream that keeps `kDepth` steps in flight on a sequence of its own, until the server ends
// it.
struct DrainedStream {
  static constexpr int kDepth = 4;

  explicit DrainedStream(LocalServer& local) : id(local.CreateSequence()) {
    stream = local.stub->DecodeStream(&context);
    thread = std::thread([this] { Run(); });
  }
  void Write() {
    if (stream->Write(testing::DecodeRequestOf(id, position, 1))) ++position;
  }
  void Run() {
    for (int i = 0; i < kDepth; ++i) Write();
    v1::DecodeResponse reply;
    while (stream->Read(&reply)) {
      ++replies;
      if (reply.status().code() == 0) ++ok;
      Write();
    }
    status = stream->Finish();
  }

  const std::string id;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::DecodeRequest, v1::DecodeResponse>> stream;
  std::int64_t position = 0;
  std::atomic<std::int64_t> replies{0};
  std::int64_t ok = 0;
  grpc::Status status;
  std::thread thread;
};

TEST(ServingNumbersTest, ADrainOfSixtyFourStreamsLosesNothing) {
  LocalServer local;
  std::vector<std::unique_ptr<DrainedStream>> streams;
  for (int i = 0; i < 64; ++i) streams.push_back(std::make_unique<DrainedStream>(local));
  for (const auto& stream : streams) {
    while (stream->replies < 20) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  local.server->Stop();
  std::int64_t replies = 0;
  std::int64_t ok = 0;
  for (const auto& stream : streams) {
    stream->thread.join();
    replies += stream->replies;
    ok += stream->ok;
    EXPECT_EQ(stream->status.error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  const Exposition metrics = ParseExposition(local.server->MetricsText());
  double answers = 0;
  for (const auto& family : metrics.families) {
    for (const auto& sample : family.samples) {
      const auto method = sample.labels.find("method");
      if (sample.name == "attnd_requests_total" && method != sample.labels.end() &&
          method->second == "DecodeStream") {
        answers += sample.value;
      }
    }
  }
  // Every answer has arrived, and every step that was launched is among the good ones.
  EXPECT_EQ(static_cast<double>(replies), answers);
  EXPECT_EQ(static_cast<double>(ok),
            metrics.Value("attnd_requests_total", {{"method", "DecodeStream"}, {"code", "OK"}}));
  EXPECT_EQ(static_cast<double>(ok),
            metrics.Value("attnd_queue_wait_seconds_count", {{"class", "decode"}}));
}

// What one step of a stream records, as the server's files do it.
void RecordStep(Metrics& metrics, const std::string& device) {
  using std::chrono::microseconds;
  metrics.AddTransportBytes(TransportPath::kInBand, Direction::kIn, 12'500);
  metrics.RecordStage(Stage::kWireDecode, microseconds(4));
  metrics.RecordQueueWait(QueueClass::kDecode, microseconds(2));
  metrics.RecordStage(Stage::kQueue, microseconds(2));
  metrics.RecordBatch(1, 1, 1, BatchClosed::kQueueEmpty);
  metrics.RecordStage(Stage::kHostToDevice, microseconds(1));
  LaunchRecord launch;
  launch.device = device;
  launch.seconds = 20e-6;
  launch.kernel = "cpu/append";
  metrics.RecordLaunch(launch);
  launch.kernel = "cpu/decode_avx512_bf16";
  metrics.RecordLaunch(launch);
  metrics.RecordStage(Stage::kKernel, microseconds(25));
  metrics.RecordStage(Stage::kWireEncode, microseconds(2));
  metrics.RecordRequest(Method::kDecodeStream, 0, microseconds(45));
  metrics.AddTransportBytes(TransportPath::kInBand, Direction::kOut, 8'300);
}

// 12 KiB in, 8 KiB out: 32 query heads on 8 KV heads of 128, BF16 zeros.
v1::DecodeRequest StepOf(const std::string& id, std::int64_t position) {
  v1::DecodeRequest request;
  v1::Step& step = *request.add_steps();
  step.set_sequence_id(id);
  step.set_position(position);
  step.set_num_tokens(1);
  const auto fill = [](v1::Tensor& tensor, std::int64_t heads) {
    tensor.set_data_type(v1::DATA_TYPE_BF16);
    for (const std::int64_t dimension : {std::int64_t{1}, heads, std::int64_t{128}}) {
      tensor.add_shape(dimension);
    }
    tensor.set_data(std::string(static_cast<std::size_t>(heads * 128 * 2), '\0'));
  };
  fill(*request.mutable_q(), 32);
  fill(*request.mutable_k(), 8);
  fill(*request.mutable_v(), 8);
  return request;
}

// Against the time of a step of one client, server and client in one process: the shortest there
// is.
TEST(ServingNumbersTest, MetricsCostLessThanAHundredthOfAStep) {
  LocalServer local;
  v1::CreateSequenceRequest create = testing::OneLayer();
  create.set_num_heads(32);
  create.set_num_kv_heads(8);
  create.set_head_dim(128);
  create.set_data_type(v1::DATA_TYPE_BF16);
  std::string id;
  ASSERT_TRUE(testing::Create(local, create, &id).ok());
  grpc::ClientContext context;
  const auto stream = local.stub->DecodeStream(&context);
  constexpr int kSteps = 2000;
  const auto begin = steady_clock::now();
  for (int step = 0; step < kSteps; ++step) {
    v1::DecodeResponse reply;
    ASSERT_TRUE(stream->Write(StepOf(id, step % 64)) && stream->Read(&reply));
  }
  const double step_seconds = SecondsSince(begin) / kSteps;
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());

  SteadyClock clock;
  Metrics metrics({}, "cpu", clock);
  constexpr int kRecords = 200'000;
  const auto record_begin = steady_clock::now();
  for (int i = 0; i < kRecords; ++i) RecordStep(metrics, "cpu");
  const double record_seconds = SecondsSince(record_begin) / kRecords;
  std::printf("a step takes %.1f us, what it records %.3f us: %.2f %%\n", step_seconds * 1e6,
              record_seconds * 1e6, 100 * record_seconds / step_seconds);
  EXPECT_LT(record_seconds, 0.01 * step_seconds);
}

}  // namespace
}  // namespace attnd
