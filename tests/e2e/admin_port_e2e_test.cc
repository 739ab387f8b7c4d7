// A server whose ports cannot be had: a clean error that names the address, never an abort.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "tests/support/local_server.h"

namespace attnd {
namespace {

using ::testing::HasSubstr;
using testing::LocalServer;
using testing::SmallConfig;

// A program that is no attnd and holds a port.
struct Squatter {
  Squatter() : socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(socket, generic, size), 0);
    EXPECT_EQ(listen(socket, 1), 0);
    EXPECT_EQ(getsockname(socket, generic, &size), 0);
    name = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }
  ~Squatter() { close(socket); }
  Squatter(const Squatter&) = delete;
  Squatter& operator=(const Squatter&) = delete;
  const int socket;
  std::string name;
};

std::string StartError(const ServerConfig& config) {
  const auto server = AttndServer::Start(config);
  EXPECT_FALSE(server.ok());
  return std::string(server.status().message());
}

TEST(AdminPortE2eTest, ATakenAdminPortIsNamed) {
  const Squatter squatter;
  ServerConfig config = SmallConfig();
  config.admin_listen = squatter.name;
  EXPECT_THAT(StartError(config), HasSubstr(squatter.name));
}

TEST(AdminPortE2eTest, ATakenGrpcPortIsNamed) {
  const Squatter squatter;
  ServerConfig config = SmallConfig();
  config.listen = squatter.name;
  EXPECT_THAT(StartError(config), HasSubstr(squatter.name));
}

TEST(AdminPortE2eTest, AnAdminAddressOfAnotherMachineIsNamed) {
  ServerConfig config = SmallConfig();
  config.admin_listen = "192.0.2.1:8002";  // reserved for documentation
  EXPECT_THAT(StartError(config), HasSubstr("192.0.2.1:8002"));
}

TEST(AdminPortE2eTest, OnePortForBothIsRefused) {
  const Squatter squatter;  // picks a free port
  ServerConfig config = SmallConfig();
  config.listen = squatter.name;
  config.admin_listen = squatter.name;
  EXPECT_THAT(StartError(config), HasSubstr("--admin_listen"));
}

TEST(AdminPortE2eTest, AServerOfOurOwnDoesNotShareItsPorts) {
  LocalServer first;
  ServerConfig config = SmallConfig();
  config.admin_listen = "127.0.0.1:" + std::to_string(first.server->admin_port());
  EXPECT_THAT(StartError(config), HasSubstr(config.admin_listen));
  config = SmallConfig();
  config.listen = first.server->address();
  EXPECT_THAT(StartError(config), HasSubstr(config.listen));
}

TEST(AdminPortE2eTest, BothPortsCanBeHadAgainAtOnce) {
  ServerConfig config = SmallConfig();
  for (int round = 0; round < 3; ++round) {
    LocalServer local(config);
    ASSERT_NE(local.server, nullptr);
    // Connections of the first round lie in TIME_WAIT in the next ones.
    local.CreateSequence();
    config.listen = local.server->address();
    config.admin_listen = "127.0.0.1:" + std::to_string(local.server->admin_port());
  }
}

}  // namespace
}  // namespace attnd
