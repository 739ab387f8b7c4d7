// The `attnd` binary on a machine on which it cannot serve: it says why, never claims to serve, and
// ends with an exit code that a supervisor sees.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/support/server_process.h"
#include "tests/support/temporary_path.h"

namespace attnd::testing {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckResponse;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kAttnd[] = ATTND_BINARY;

// With a library whose results are wrong, and slow to come.
ServerProcess WithABrokenLibrary(const std::vector<std::string>& flags) {
  return ServerProcess(
      kAttnd, flags,
      {"env", "LD_PRELOAD=" ATTND_BROKEN_BLAS, "ASAN_OPTIONS=verify_asan_link_order=0"});
}

TEST(FailedStartTest, AFailedSelfTestNeverServesAndEndsTheProcess) {
  const std::string socket = "unix:" + TemporaryPath("failed_start.sock");
  ServerProcess server = WithABrokenLibrary({"--listen=" + socket});
  const auto health =
      Health::NewStub(grpc::CreateChannel(socket, grpc::InsecureChannelCredentials()));
  std::atomic<bool> ended{false};
  int answers = 0;
  std::thread poll([&] {
    while (!ended) {
      grpc::ClientContext context;
      context.set_wait_for_ready(true);
      context.set_deadline(std::chrono::system_clock::now() + milliseconds(200));
      HealthCheckResponse response;
      if (health->Check(&context, {}, &response).ok()) {
        EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
        ++answers;
      }
      std::this_thread::sleep_for(milliseconds(10));
    }
  });
  EXPECT_EQ(server.AwaitExit(), 1) << server.log();
  ended = true;
  poll.join();
  EXPECT_GT(answers, 0) << "the port is open while the self-test runs";
  EXPECT_THAT(server.log(), HasSubstr("self-test failed"));
  EXPECT_THAT(server.log(), HasSubstr("gave a wrong result"));
  EXPECT_THAT(server.log(), Not(HasSubstr(" serving ")));
}

// What no new start can mend ends with 2, as a flag that does not parse does.
TEST(FailedStartTest, FlagsThatContradictEachOtherOrTheMachineAreWrongFlags) {
  for (const auto& [flag, error] : std::vector<std::pair<std::string, std::string>>{
           {"--workspace_bytes=1", "--workspace_bytes: got '1', need at least "},
           {"--kernel_arch=sm75", "--kernel_arch: got 'sm75'"},
           {"--cache_bytes=64TiB", "--cache_bytes: got '64TiB', need at most "},
           {"--host_cache_bytes=64TiB", "--host_cache_bytes: got '64TiB', need at most "}}) {
    ServerProcess server(kAttnd, {flag});
    EXPECT_EQ(server.AwaitExit(), 2) << flag;
    EXPECT_THAT(server.log(), HasSubstr(error));
  }
}

}  // namespace
}  // namespace attnd::testing
