#include "server/listen_address.h"

#include <string>

#include "gtest/gtest.h"

namespace attnd {
namespace {

ListenAddress Address(const char* text) {
  const auto address = ParseListenAddress(text);
  EXPECT_TRUE(address.ok()) << address.status();
  return address.value_or(ListenAddress());
}

TEST(ListenAddressTest, ReadsAndWritesEveryForm) {
  for (const char* text :
       {"127.0.0.1:8001", "localhost:0", "[::1]:8001", "0.0.0.0:65535", "unix:/run/attnd.sock"}) {
    EXPECT_EQ(Address(text).ToString(), text);
  }
  EXPECT_EQ(Address("[::1]:8001").host, "::1");
  EXPECT_EQ(Address("unix:/run/attnd.sock").unix_path, "/run/attnd.sock");
}

TEST(ListenAddressTest, RefusesUnixPathsThatTheKernelWouldCutOff) {
  EXPECT_TRUE(ParseListenAddress("unix:/" + std::string(106, 'x')).ok());
  EXPECT_FALSE(ParseListenAddress("unix:/" + std::string(107, 'x')).ok());
}

TEST(ListenAddressTest, KnowsWhatOnlyThisMachineReaches) {
  for (const char* text : {"127.0.0.1:1", "127.8.8.8:1", "localhost:1", "[::1]:1", "unix:/a"}) {
    EXPECT_TRUE(Address(text).LocalOnly()) << text;
  }
  for (const char* text : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.com:1"}) {
    EXPECT_FALSE(Address(text).LocalOnly()) << text;
  }
}

TEST(ListenAddressTest, KnowsWhichAddressesClash) {
  EXPECT_TRUE(SameSocket(Address("127.0.0.1:1"), Address("localhost:1")));
  EXPECT_TRUE(SameSocket(Address("0.0.0.0:1"), Address("127.0.0.1:1")));
  EXPECT_TRUE(SameSocket(Address("unix:/a"), Address("unix:/a")));
  EXPECT_FALSE(SameSocket(Address("127.0.0.1:1"), Address("127.0.0.1:2")));
  EXPECT_FALSE(SameSocket(Address("127.0.0.1:1"), Address("127.0.0.2:1")));
  EXPECT_FALSE(SameSocket(Address("0.0.0.0:0"), Address("0.0.0.0:0")));
  EXPECT_FALSE(SameSocket(Address("unix:/a"), Address("127.0.0.1:1")));
}

}  // namespace
}  // namespace attnd
