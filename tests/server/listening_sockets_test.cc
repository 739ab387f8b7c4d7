#include "server/listening_sockets.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/raw_connection.h"
#include "tests/support/temporary_path.h"

namespace attnd {
namespace {

using testing::RawConnection;

absl::StatusOr<ListeningSockets> Open(const std::string& address) {
  return ListeningSockets::Open(*ParseListenAddress(address));
}

// True where ::1 takes a connection on `port`.
bool ConnectsOverIpv6(int port) {
  const int client = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 name{};
  name.sin6_family = AF_INET6;
  name.sin6_addr = in6addr_loopback;
  name.sin6_port = htons(static_cast<std::uint16_t>(port));
  const bool connected =
      client >= 0 && connect(client, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0;
  if (client >= 0) close(client);
  return connected;
}

bool MachineHasIpv6() {
  const int probe = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 name{};
  name.sin6_family = AF_INET6;
  name.sin6_addr = in6addr_loopback;
  const bool has =
      probe >= 0 && bind(probe, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0;
  if (probe >= 0) close(probe);
  return has;
}

TEST(ListeningSocketsTest, PortZeroIsAFreePortThatNobodyElseGets) {
  const auto first = Open("127.0.0.1:0");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_GT(first->port(), 0);
  EXPECT_TRUE(RawConnection(first->port()).connected());
  const auto second = Open("127.0.0.1:" + std::to_string(first->port()));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().message(), "Address already in use");
}

TEST(ListeningSocketsTest, APortIsFreeAgainAtOnceAfterAClose) {
  int port = 0;
  {
    const auto sockets = Open("127.0.0.1:0");
    ASSERT_TRUE(sockets.ok()) << sockets.status();
    port = sockets->port();
    const RawConnection client(port);
    close(accept(sockets->descriptors()[0], nullptr, nullptr));  // TIME_WAIT is on our side
  }
  EXPECT_FALSE(RawConnection(port).connected());
  EXPECT_TRUE(Open("127.0.0.1:" + std::to_string(port)).ok());
}

TEST(ListeningSocketsTest, TellsWhatTheSystemSays) {
  EXPECT_EQ(Open("192.0.2.1:0").status().message(), "Cannot assign requested address");
  EXPECT_FALSE(Open("no.such.host.invalid:0").ok());
}

TEST(ListeningSocketsTest, AWildcardTakesBothFamilies) {
  for (const char* address : {"0.0.0.0:0", "[::]:0"}) {
    const auto sockets = Open(address);
    ASSERT_TRUE(sockets.ok()) << sockets.status();
    EXPECT_TRUE(RawConnection(sockets->port()).connected()) << address;
    EXPECT_EQ(ConnectsOverIpv6(sockets->port()), MachineHasIpv6()) << address;
  }
}

TEST(ListeningSocketsTest, AnIpv6AddressTakesNoIpv4) {
  if (!MachineHasIpv6()) GTEST_SKIP() << "this machine has no ::1";
  const auto sockets = Open("[::1]:0");
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  EXPECT_TRUE(ConnectsOverIpv6(sockets->port()));
  EXPECT_FALSE(RawConnection(sockets->port()).connected());
}

TEST(ListeningSocketsTest, AUnixPathIsRemovedWithItsSocketsAndNotBefore) {
  const std::string path = TemporaryPath("listening.sock");
  {
    const auto sockets = Open("unix:" + path);
    ASSERT_TRUE(sockets.ok()) << sockets.status();
    EXPECT_EQ(sockets->port(), 0);
    const auto second = Open("unix:" + path);
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.status().message(), "another server answers on the socket");
    EXPECT_TRUE(std::filesystem::is_socket(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(ListeningSocketsTest, APathThatSomebodyElseHasTakenOverIsLeftAlone) {
  const std::string path = TemporaryPath("taken_over.sock");
  {
    const auto sockets = Open("unix:" + path);
    ASSERT_TRUE(sockets.ok()) << sockets.status();
    // Keeps its inode, so that the file cannot get the same one.
    std::filesystem::rename(path, path + ".old");
    std::ofstream(path) << "data";
  }
  EXPECT_TRUE(std::filesystem::is_regular_file(path));
  EXPECT_FALSE(Open("unix:" + path).ok()) << "no socket";
  EXPECT_TRUE(std::filesystem::is_regular_file(path));
  std::filesystem::remove(path);
  std::filesystem::remove(path + ".old");
}

}  // namespace
}  // namespace attnd
