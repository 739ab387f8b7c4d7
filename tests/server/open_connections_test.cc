#include "server/open_connections.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace attnd {
namespace {

int NewSocket() { return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); }

TEST(OpenConnectionsTest, CountsUntilTheDescriptorIsClosed) {
  OpenConnections connections;
  const int first = NewSocket(), second = NewSocket();
  connections.Add(first);
  connections.Add(second);
  EXPECT_EQ(connections.count(), 2);
  connections.Sweep();
  EXPECT_EQ(connections.count(), 2);
  close(first);
  EXPECT_EQ(connections.count(), 2) << "nobody has looked";
  connections.Sweep();
  EXPECT_EQ(connections.count(), 1);
  close(second);
  connections.Sweep();
  EXPECT_EQ(connections.count(), 0);
}

TEST(OpenConnectionsTest, ANumberThatIsTakenAgainIsAnotherConnection) {
  OpenConnections connections;
  const int first = NewSocket();
  connections.Add(first);
  close(first);
  const int second = NewSocket();
  ASSERT_EQ(second, first) << "the lowest free number";
  connections.Add(second);
  EXPECT_EQ(connections.count(), 1);
  connections.Sweep();
  EXPECT_EQ(connections.count(), 1);
  close(second);
  // Something else of this process gets the number.
  const int other_socket = NewSocket();
  ASSERT_EQ(other_socket, first);
  connections.Sweep();
  EXPECT_EQ(connections.count(), 0);
  close(other_socket);
}

TEST(OpenConnectionsTest, ShutsDownWhatIsOpenAndNothingElse) {
  OpenConnections connections;
  int pair[2], other[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const int closed = NewSocket();
  connections.Add(pair[0]);
  connections.Add(closed);
  close(closed);
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, other), 0);
  ASSERT_EQ(other[0], closed) << "the lowest free number";
  connections.ShutDown();
  char byte = 0;
  EXPECT_EQ(recv(pair[1], &byte, 1, MSG_DONTWAIT), 0) << "the end of the stream";
  EXPECT_EQ(send(other[0], &byte, 1, MSG_NOSIGNAL), 1) << "not a connection that was added";
  connections.Sweep();
  EXPECT_EQ(connections.count(), 1) << "shut down, not closed";
  for (const int each : {pair[0], pair[1], other[0], other[1]}) close(each);
}

TEST(OpenConnectionsTest, AFileThatGetsTheNumberIsNoConnection) {
  OpenConnections connections;
  const int connection = NewSocket();
  connections.Add(connection);
  close(connection);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(ends[0], connection);
  connections.Sweep();
  EXPECT_EQ(connections.count(), 0);
  connections.Add(ends[1]);
  EXPECT_EQ(connections.count(), 0) << "no socket";
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace attnd
