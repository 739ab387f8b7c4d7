// The `attnd` binary as its users run it: a stop with work in flight, addresses that are taken, a
// crash and a restart under a client that goes on, wrong configuration.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "attnd/v1/attention.grpc.pb.h"
#include "client/attention_client.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/support/await.h"
#include "tests/support/exposition_parser.h"
#include "tests/support/run_program.h"
#include "tests/support/server_process.h"
#include "tests/support/tcp_relay.h"
#include "tests/support/temporary_path.h"

namespace attnd::testing {
namespace {

using grpc::health::v1::HealthCheckResponse;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::Each;
using ::testing::FloatNear;
using ::testing::HasSubstr;

using Stub = v1::AttentionService::Stub;
using Stream = grpc::ClientReaderWriter<v1::DecodeRequest, v1::DecodeResponse>;

constexpr char kAttnd[] = ATTND_BINARY;
constexpr int kHeads = 2;
constexpr int kDim = 8;

std::string Option(const std::string& name, const std::string& value) {
  return "--" + name + "=" + value;
}

std::string Local(int port) { return "127.0.0.1:" + std::to_string(port); }

// A connection of its own, not one that gRPC shares between channels.
std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

std::unique_ptr<Stub> StubOf(const std::string& address) {
  return v1::AttentionService::NewStub(Connect(address));
}

// A port that was free a moment ago.
int FreePort() {
  const int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(probe, generic, size), 0);
  EXPECT_EQ(getsockname(probe, generic, &size), 0);
  close(probe);
  return ntohs(address.sin_port);
}

v1::CreateSequenceRequest OneLayer() {
  v1::CreateSequenceRequest request;
  request.set_num_layers(1);
  request.set_num_heads(kHeads);
  request.set_num_kv_heads(kHeads);
  request.set_head_dim(kDim);
  request.set_data_type(v1::DATA_TYPE_FP32);
  return request;
}

std::string CreateSequence(Stub& stub) {
  grpc::ClientContext context;
  v1::CreateSequenceResponse response;
  const auto status = stub.CreateSequence(&context, OneLayer(), &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.sequence_id();
}

void Fill(v1::Tensor& tensor, std::int64_t tokens, int heads, int dim, float value) {
  const std::vector<float> values(tokens * heads * dim, value);
  tensor.set_data_type(v1::DATA_TYPE_FP32);
  for (const std::int64_t size : {tokens, std::int64_t{heads}, std::int64_t{dim}}) {
    tensor.add_shape(size);
  }
  tensor.set_data(values.data(), values.size() * sizeof(float));
}

v1::DecodeRequest StepOf(const std::string& id, std::int64_t position, float value) {
  v1::DecodeRequest request;
  v1::Step& step = *request.add_steps();
  step.set_sequence_id(id);
  step.set_position(position);
  step.set_num_tokens(1);
  for (v1::Tensor* tensor : {request.mutable_q(), request.mutable_k(), request.mutable_v()}) {
    Fill(*tensor, 1, kHeads, kDim, value);
  }
  return request;
}

std::vector<float> FloatsOf(const v1::Tensor& tensor) {
  std::vector<float> values(tensor.data().size() / sizeof(float));
  std::copy_n(tensor.data().data(), tensor.data().size(), reinterpret_cast<char*>(values.data()));
  return values;
}

// A stream over a connection of its own that has had one step answered and then says nothing.
struct IdleStream {
  explicit IdleStream(const std::string& address)
      : stub(StubOf(address)), stream(stub->DecodeStream(&context)) {
    v1::DecodeResponse response;
    EXPECT_TRUE(stream->Write(StepOf(CreateSequence(*stub), 0, 1)));
    EXPECT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.status().code(), 0) << response.status().message();
  }
  std::unique_ptr<Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<Stream> stream;
};

double Metric(const std::string& admin, const std::string& name) {
  const auto page = httplib::Client("http://" + admin).Get("/metrics");
  EXPECT_TRUE(page);
  return page ? ParseExposition(page->body).Sum(name) : -1;
}

// A server that must not start: exit code 1 (an abort would be 134), the address in the log.
void ExpectCannotListen(const std::string& flag, const std::string& address) {
  ServerProcess server(kAttnd, {Option(flag, address)});
  EXPECT_EQ(server.AwaitExit(), 1) << server.log();
  EXPECT_THAT(server.log(), HasSubstr("cannot start"));
  EXPECT_THAT(server.log(), HasSubstr(address));
}

TEST(ProcessCasesTest, SigintStopsLikeSigterm) {
  ServerProcess server(kAttnd, {"--lame_duck=0"});
  ASSERT_TRUE(server.AwaitServing());
  server.Signal(SIGINT);
  EXPECT_EQ(server.AwaitExit(), 0) << server.log();
  EXPECT_THAT(server.log(), HasSubstr("signal received signal=2"));
}

TEST(ProcessCasesTest, SigtermFinishesWhatWasAdmittedAndRefusesTheRest) {
  ServerProcess server(kAttnd, {"--lame_duck=300ms", "--stop_limit=60s"});
  const auto address = server.AwaitServing();
  ASSERT_TRUE(address) << server.log();
  const std::string admin = server.admin_address();
  const IdleStream idle(*address);
  grpc::ClientContext watch_context;
  const auto health = grpc::health::v1::Health::NewStub(Connect(*address));
  const auto watch = health->Watch(&watch_context, {});
  HealthCheckResponse state;
  ASSERT_TRUE(watch->Read(&state));
  EXPECT_EQ(state.status(), HealthCheckResponse::SERVING);
  // Much work in few bytes, so that all wait while the first ones run.
  constexpr int kTokens = 3072;
  constexpr int kSize = 64;
  v1::AttendRequest slow;
  Fill(*slow.mutable_q(), kTokens, 1, kSize, 1);
  Fill(*slow.mutable_k(), kTokens, 1, kSize, 1);
  Fill(*slow.mutable_v(), kTokens, 1, kSize, 0.25F);
  constexpr int kCalls = 12;
  std::vector<std::thread> admitted;
  std::atomic<int> right{0};
  const double before = Metric(admin, "attnd_requests_total");
  for (int i = 0; i < kCalls; ++i) {
    admitted.emplace_back([&] {
      grpc::ClientContext context;
      v1::AttendResponse response;
      const auto status = StubOf(*address)->Attend(&context, slow, &response);
      EXPECT_TRUE(status.ok()) << status.error_message();
      const std::vector<float> values = FloatsOf(response.o());
      if (values.size() == kTokens * kSize && std::abs(values.back() - 0.25F) < 1e-5F) ++right;
    });
  }
  // Against the way that a call takes (queue, running, answered), so that none counts twice.
  double calls = 0;
  while (calls < kCalls) {
    calls = Metric(admin, "attnd_requests_total") - before;
    calls += Metric(admin, "attnd_running_requests");
    calls += Metric(admin, "attnd_queue_depth");
  }
  server.Signal(SIGTERM);
  ASSERT_TRUE(watch->Read(&state)) << "told at once, not at the end";
  EXPECT_EQ(state.status(), HealthCheckResponse::NOT_SERVING);
  const auto stub = StubOf(*address);
  for (int call = 0; call < 3; ++call) {
    grpc::ClientContext context;
    v1::CreateSequenceResponse response;
    EXPECT_EQ(stub->CreateSequence(&context, OneLayer(), &response).error_code(),
              grpc::StatusCode::UNAVAILABLE);
  }
  for (std::thread& call : admitted) call.join();
  EXPECT_EQ(right, kCalls);
  EXPECT_FALSE(watch->Read(&state)) << "ended by the server";
  EXPECT_EQ(idle.stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(server.AwaitExit(), 0) << server.log();
}

// What is left of a reply that nobody takes holds up neither the stop nor the end of the process.
TEST(ProcessCasesTest, SigtermEndsWithinTheLimitThoughAClientHasStoppedReading) {
  ServerProcess server(kAttnd, {"--lame_duck=0", "--stop_limit=4s"});
  const auto address = server.AwaitServing();
  ASSERT_TRUE(address) << server.log();
  const std::string admin = server.admin_address();
  TcpRelay relay(std::stoi(address->substr(address->rfind(':') + 1)));
  const auto stub = StubOf(relay.address());
  relay.HoldAnswersAfter(1 << 20);  // enough for what goes back while the request comes
  v1::AttendRequest large;          // the answer is more than sockets hold, 32 MiB
  Fill(*large.mutable_q(), 32'768, 1, 256, 1);
  Fill(*large.mutable_k(), 1, 1, 256, 1);
  Fill(*large.mutable_v(), 1, 1, 256, 1);
  grpc::ClientContext context;
  std::thread reader([&] {
    v1::AttendResponse response;
    EXPECT_FALSE(stub->Attend(&context, large, &response).ok());
  });
  EXPECT_TRUE(
      Await([&] { return Metric(admin, "attnd_transport_bytes_total") >= 2 * 32'768 * 1024; }));
  const auto asked = steady_clock::now();
  server.Signal(SIGTERM);
  EXPECT_EQ(server.AwaitExit(), 0) << server.log();
  EXPECT_LT(steady_clock::now() - asked, seconds(4));
  relay.Cut();
  reader.join();
}

// Both bind at the same moment: one of them serves all connections, the other one says why not.
TEST(ProcessCasesTest, OfTwoServersThatStartTogetherOneServes) {
  const std::string address = Local(FreePort());
  ServerProcess one(kAttnd, {Option("listen", address), "--server_name=one"});
  ServerProcess other(kAttnd, {Option("listen", address), "--server_name=other"});
  const bool one_serves = one.AwaitServing().has_value();
  ASSERT_NE(one_serves, other.AwaitServing().has_value()) << one.log() << other.log();
  ServerProcess& loser = one_serves ? other : one;
  EXPECT_EQ(loser.AwaitExit(), 1);
  EXPECT_THAT(loser.log(), HasSubstr("cannot listen on " + address));
  for (int connection = 0; connection < 20; ++connection) {
    const auto stub = StubOf(address);
    for (int call = 0; call < 5; ++call) {
      grpc::ClientContext context;
      v1::GetServerInfoResponse info;
      ASSERT_TRUE(stub->GetServerInfo(&context, {}, &info).ok());
      ASSERT_EQ(info.server(), one_serves ? "one" : "other");
    }
  }
}

TEST(ProcessCasesTest, AddressesThatCannotBeHadEndTheStartCleanly) {
  httplib::Server web;  // a program that speaks no gRPC
  const std::string taken = Local(web.bind_to_any_port("127.0.0.1"));
  std::thread serving([&web] { web.listen_after_bind(); });
  ExpectCannotListen("listen", taken);
  ExpectCannotListen("admin_listen", taken);
  web.stop();
  serving.join();
  ExpectCannotListen("listen", "192.0.2.1:8001");  // reserved for documentation
  ExpectCannotListen("admin_listen", "192.0.2.1:8002");
}

TEST(ProcessCasesTest, ASocketLeftBehindByAKillIsTakenOver) {
  const std::string path = TemporaryPath("stale.sock");
  const std::string address = "unix:" + path;
  for (int round = 0; round < 3; ++round) {
    ServerProcess server(kAttnd, {Option("listen", address)});
    ASSERT_EQ(server.AwaitServing(), address) << server.log();
    CreateSequence(*StubOf(address));
    server.Signal(SIGKILL);
    EXPECT_EQ(server.AwaitExit(), 128 + SIGKILL);
    EXPECT_TRUE(std::filesystem::is_socket(path)) << "nobody was left to remove it";
  }
}

TEST(ProcessCasesTest, AClientGoesOnAfterAKillAndARestart) {
  const std::string address = Local(FreePort());
  const std::vector<std::string> flags = {Option("listen", address),
                                          Option("admin_listen", Local(FreePort()))};
  auto server = std::make_unique<ServerProcess>(kAttnd, flags);
  ASSERT_EQ(server->AwaitServing(), address) << server->log();
  client::AttentionClient client({.transport = {.target = address}});
  const auto old = client.CreateSequence(OneLayer());
  ASSERT_TRUE(old.ok()) << old.status();
  const IdleStream open(address);
  server->Signal(SIGKILL);
  const auto killed = steady_clock::now();
  EXPECT_EQ(open.stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_LT(steady_clock::now() - killed, seconds(2));
  EXPECT_EQ(server->AwaitExit(), 128 + SIGKILL);
  server = std::make_unique<ServerProcess>(kAttnd, flags);
  ASSERT_EQ(server->AwaitServing(), address) << "both ports at once: " << server->log();
  const auto restarted = steady_clock::now();
  v1::GetSequenceRequest get;
  get.set_sequence_id(old->sequence_id());
  const auto gone = client.GetSequence(get).status();
  EXPECT_EQ(gone.code(), absl::StatusCode::kNotFound) << gone;
  EXPECT_EQ(client::DescribeError(gone).reason, v1::REASON_SERVER_RESTARTED);
  const auto created = client.CreateSequence(OneLayer());
  ASSERT_TRUE(created.ok()) << created.status();
  client::DecodeRequest step;
  step.steps.push_back(StepOf(created->sequence_id(), 0, 1).steps(0));
  step.q = step.k = step.v = *client::TensorFromFloats(v1::DATA_TYPE_FP32, {1, kHeads, kDim},
                                                       std::vector<float>(kHeads * kDim, 0.5F));
  const auto answer = client.OpenDecodeStream()->Submit(step).get();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_THAT(*client::FloatsFromTensor(answer->o), Each(FloatNear(0.5F, 1e-5F)));
  EXPECT_LT(steady_clock::now() - restarted, seconds(5));
}

TEST(ProcessCasesTest, WrongConfigurationExitsWithTwoAndNamesIt) {
  const std::string config = TemporaryPath("wrong.yaml");
  std::ofstream(config) << "threads: 2\nlisten_adress: 127.0.0.1:1\n";
  for (const auto& [flags, named] : std::vector<std::pair<std::string, std::string>>{
           {"--cache_bytes=4parsecs", "cache_bytes"},
           {"--device=quantum", "device"},
           {"--log_level=loud", "log_level"},
           {"--listen=127.0.0.1:7 --admin_listen=127.0.0.1:7", "admin_listen"},
           {"stray", "stray"},
           {"--config=" + config, "listen_adress"},
           {"--config=/nowhere/attnd.yaml", "/nowhere/attnd.yaml"}}) {
    const ProgramResult result = RunProgram(kAttnd, flags);
    EXPECT_EQ(result.exit_code, 2) << flags;
    EXPECT_THAT(result.errors, HasSubstr(named)) << flags;
    EXPECT_THAT(result.errors, ::testing::StartsWith("attnd: ")) << flags;
    EXPECT_EQ(result.output, "") << flags;
  }
}

// No machine has that many GPUs: whatever this build and this machine hold, the start fails, and is
// never quietly moved to the CPU.
TEST(ProcessCasesTest, AGpuThatIsNotThereIsRefused) {
  const ProgramResult result =
      RunProgram(kAttnd, "--listen=127.0.0.1:0 --admin_listen=127.0.0.1:0 --device=cuda:999");
  EXPECT_THAT(result.errors, HasSubstr("--device: got 'cuda:999'"));
  const bool built = result.errors.find("this build has no CUDA kernels") == std::string::npos;
  EXPECT_EQ(result.exit_code, built ? 1 : 2) << "a driver may come, other code does not";
}

TEST(ProcessCasesTest, HelpAndVersionGoToStandardOutput) {
  for (const auto& [flag, text] :
       {std::pair("--help", "--max_unary_in_flight"), std::pair("--version", "attnd")}) {
    const ProgramResult result = RunProgram(kAttnd, flag);
    EXPECT_EQ(result.exit_code, 0) << flag;
    EXPECT_THAT(result.output, HasSubstr(text));
    EXPECT_EQ(result.errors, "") << flag;
  }
}

}  // namespace
}  // namespace attnd::testing
