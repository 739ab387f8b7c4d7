#include "server/connection_acceptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "server/logging.h"
#include "server/mutex.h"
#include "tests/support/await.h"
#include "tests/support/raw_connection.h"

namespace attnd {
namespace {

using testing::Await;
using testing::RawConnection;

constexpr int kSoon = 10'000;  // milliseconds that nothing here takes
constexpr int kNotAtAll = 100;

// Keeps what it is handed.
class Keeper {
 public:
  ~Keeper() {
    while (CloseOldest()) {
    }
  }
  void Keep(int connection) {
    const MutexLock lock(mutex_);
    kept_.push_back(connection);
  }
  bool CloseOldest() {
    const MutexLock lock(mutex_);
    if (kept_.empty()) return false;
    close(kept_.front());
    kept_.pop_front();
    return true;
  }
  int count() const {
    const MutexLock lock(mutex_);
    return static_cast<int>(kept_.size());
  }

 private:
  mutable Mutex mutex_;
  std::deque<int> kept_ ABSL_GUARDED_BY(mutex_);
};

struct Accepting {
  explicit Accepting(std::int64_t max_connections) {
    auto sockets = ListeningSockets::Open(*ParseListenAddress("127.0.0.1:0"));
    EXPECT_TRUE(sockets.ok()) << sockets.status();
    port = sockets->port();
    auto started = ConnectionAcceptor::Start(
        *std::move(sockets), max_connections, [this](int listener, int connection) {
          EXPECT_GE(listener, 0);
          EXPECT_NE(fcntl(connection, F_GETFL) & O_NONBLOCK, 0);
          EXPECT_NE(fcntl(connection, F_GETFD) & FD_CLOEXEC, 0);
          keeper.Keep(connection);
        });
    EXPECT_TRUE(started.ok()) << started.status();
    acceptor = *std::move(started);
  }

  Keeper keeper;
  int port = 0;
  std::unique_ptr<ConnectionAcceptor> acceptor;
};

TEST(ConnectionAcceptorTest, HandsOverConnectionsAndCountsThoseThatAreOpen) {
  Accepting accepting(100);
  std::vector<RawConnection> connections;
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(connections.emplace_back(accepting.port).connected());
  ASSERT_TRUE(Await([&] { return accepting.keeper.count() == 10; }));
  EXPECT_EQ(accepting.acceptor->counts().open, 10);
  for (int i = 0; i < 4; ++i) accepting.keeper.CloseOldest();
  EXPECT_EQ(accepting.acceptor->counts().open, 6);
  EXPECT_EQ(accepting.acceptor->counts().refused, 0);
}

TEST(ConnectionAcceptorTest, ClosesWhatIsBeyondTheLimitUntilThereIsAPlace) {
  Accepting accepting(3);
  std::vector<RawConnection> connections;
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(connections.emplace_back(accepting.port).connected());
  for (int i = 3; i < 50; ++i) EXPECT_TRUE(connections[i].AwaitClosed(kSoon)) << i;
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(connections[i].AwaitClosed(kNotAtAll)) << i;
  EXPECT_EQ(accepting.keeper.count(), 3);
  EXPECT_EQ(accepting.acceptor->counts().refused, 47);
  ASSERT_TRUE(accepting.keeper.CloseOldest());
  const RawConnection next(accepting.port);
  EXPECT_TRUE(Await([&] { return accepting.keeper.count() == 3; }));
  EXPECT_FALSE(next.AwaitClosed(kNotAtAll));
  EXPECT_TRUE(RawConnection(accepting.port).AwaitClosed(kSoon)) << "full again";
}

// Lowers this process's limit of open files to what is open now.
class NoDescriptorLeft {
 public:
  NoDescriptorLeft() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit tight = before_;
    const int lowest_free = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(lowest_free);
    tight.rlim_cur = static_cast<rlim_t>(lowest_free);
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  }
  ~NoDescriptorLeft() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST(ConnectionAcceptorTest, GoesOnAfterTheDescriptorsRanOut) {
  Accepting accepting(100);
  const RawConnection established(accepting.port);
  ASSERT_TRUE(Await([&] { return accepting.keeper.count() == 1; }));
  std::vector<RawConnection> late(20);
  // UndefinedBehaviorSanitizer opens a pipe for each type whose virtual table it checks first: the
  // log's are met here, with descriptors left.
  Log(LogLevel::kWarn, "descriptors run out on purpose", {{"why", "as the acceptor quotes"}});
  {
    const NoDescriptorLeft none;
    for (RawConnection& each : late) ASSERT_TRUE(each.Connect(accepting.port));
    for (const RawConnection& each : late) EXPECT_TRUE(each.AwaitClosed(kSoon)) << "told at once";
    EXPECT_EQ(accepting.acceptor->counts().refused, 20);
    EXPECT_FALSE(established.AwaitClosed(kNotAtAll));
  }
  const RawConnection next(accepting.port);
  EXPECT_TRUE(Await([&] { return accepting.keeper.count() == 2; }));
  EXPECT_FALSE(next.AwaitClosed(kNotAtAll));
}

TEST(ConnectionAcceptorTest, NothingIsHandedOverAfterAStopAmidConnections) {
  Accepting accepting(1'000'000);
  std::thread client([port = accepting.port] {
    while (RawConnection(port).connected()) {  // until the port is closed
    }
  });
  ASSERT_TRUE(Await([&] { return accepting.keeper.count() > 10; }));
  accepting.acceptor->Stop();
  const int handed_over = accepting.keeper.count();
  client.join();
  EXPECT_EQ(accepting.keeper.count(), handed_over);
  accepting.acceptor->Stop();
  EXPECT_GE(accepting.acceptor->counts().open, 1) << "those handed over are not touched";
}

TEST(ConnectionAcceptorTest, StopsWhileItRefusesAFlood) {
  Accepting accepting(0);
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([port = accepting.port] {
      while (RawConnection(port).connected()) {
      }
    });
  }
  ASSERT_TRUE(Await([&] { return accepting.acceptor->counts().refused > 100; }));
  accepting.acceptor->Stop();
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(accepting.keeper.count(), 0);
}

}  // namespace
}  // namespace attnd
