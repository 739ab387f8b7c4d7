// More connections than the server may have descriptors or places for: those that are open go on,
// and once some are closed new ones are served.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "attnd/v1/attention.grpc.pb.h"
#include "tests/support/await.h"
#include "tests/support/exposition_parser.h"
#include "tests/support/raw_connection.h"
#include "tests/support/server_process.h"

namespace attnd::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

using Stub = v1::AttentionService::Stub;

constexpr char kAttnd[] = ATTND_BINARY;

// With this limit of open files a server has 32 places, see --max_connections.
const std::vector<std::string> kFewDescriptors = {"prlimit", "--nofile=128"};
constexpr int kPlaces = 32;

int PortOf(const std::string& address) { return std::stoi(address.substr(address.rfind(':') + 1)); }

// Over a connection of its own, which is tried again soon after it was refused.
std::unique_ptr<Stub> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
  return v1::AttentionService::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

grpc::Status Call(Stub& stub, bool wait_for_connection = false) {
  grpc::ClientContext context;
  context.set_wait_for_ready(wait_for_connection);
  context.set_deadline(std::chrono::system_clock::now() + seconds(5));
  v1::GetServerInfoResponse info;
  return stub.GetServerInfo(&context, {}, &info);
}

// The admin port answers, whatever the gRPC port suffers.
double Metric(const ServerProcess& server, const std::string& name) {
  const auto page = httplib::Client("http://" + server.admin_address()).Get("/metrics");
  EXPECT_TRUE(page);
  return page ? ParseExposition(page->body).Sum(name) : -1;
}

bool AwaitMetric(const ServerProcess& server, const std::string& name, double value) {
  return Await([&] { return Metric(server, name) == value; });
}

TEST(ConnectionCasesTest, TwoHundredConnectionsOfAFewAllowedDoNotDeafenTheServer) {
  ServerProcess server(kAttnd, {}, kFewDescriptors);
  const auto address = server.AwaitServing();
  ASSERT_TRUE(address) << server.log();
  const auto established = Connect(*address);
  ASSERT_TRUE(Call(*established).ok());
  {
    constexpr int kConnections = 200;
    std::vector<RawConnection> connections;
    for (int i = 0; i < kConnections; ++i) {
      ASSERT_TRUE(connections.emplace_back(PortOf(*address)).connected());
    }
    EXPECT_TRUE(AwaitMetric(server, "attnd_connections_refused_total", 1 + kConnections - kPlaces));
    EXPECT_EQ(Metric(server, "attnd_connections"), kPlaces);
    const double cpu_before = server.cpu_seconds();
    const auto begin = steady_clock::now();
    int calls = 0;
    while (steady_clock::now() - begin < seconds(5)) {
      const auto status = Call(*established);
      EXPECT_TRUE(status.ok()) << status.error_message();
      ++calls;
      std::this_thread::sleep_for(milliseconds(100));
    }
    EXPECT_GE(calls, 10);
    EXPECT_LT(server.cpu_seconds() - cpu_before, 0.2 * 5) << "of one core";
    EXPECT_EQ(Call(*Connect(*address)).error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  const auto released = steady_clock::now();
  const auto status = Call(*Connect(*address), /*wait_for_connection=*/true);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_LT(steady_clock::now() - released, seconds(5));
  EXPECT_TRUE(AwaitMetric(server, "attnd_connections", 1)) << "the established one";
  EXPECT_TRUE(Call(*established).ok());
  server.Signal(SIGTERM);
  EXPECT_EQ(server.AwaitExit(), 0) << server.log();
  EXPECT_THAT(server.log(), HasSubstr("connections are refused"));
}

TEST(ConnectionCasesTest, ConnectionsThatSayNothingGiveTheirPlacesAway) {
  ServerProcess server(kAttnd, {"--max_connections=4"});
  const auto address = server.AwaitServing();
  ASSERT_TRUE(address) << server.log();
  std::vector<RawConnection> silent;
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(silent.emplace_back(PortOf(*address)).connected());
  EXPECT_TRUE(RawConnection(PortOf(*address)).AwaitClosed(5'000));
  for (const RawConnection& each : silent) EXPECT_TRUE(each.AwaitClosed(20'000));
  const auto stub = Connect(*address);
  EXPECT_TRUE(Call(*stub, /*wait_for_connection=*/true).ok());
}

TEST(ConnectionCasesTest, MoreConnectionsThanDescriptorsAreRefusedAtTheStart) {
  ServerProcess server(kAttnd, {"--max_connections=33"}, kFewDescriptors);
  EXPECT_EQ(server.AwaitExit(), 2);
  EXPECT_THAT(server.log(), HasSubstr("--max_connections: got '33', need at most 32"));
}

}  // namespace
}  // namespace attnd::testing
