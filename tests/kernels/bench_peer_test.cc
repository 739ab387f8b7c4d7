// Peers of attnbench: child processes that live as long as their object.
#include "kernels/bench/bench_peer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace attnd::kernels::bench {
namespace {

// Answers every line and ends with its input.
class BenchPeerTest : public ::testing::Test {
 protected:
  BenchPeerTest() : script_(::testing::TempDir() + "peer_" + std::to_string(getpid()) + ".py") {
    std::ofstream(script_) << "import sys\n"
                              "print('{\"peer\": \"' + sys.argv[1] + '\"}', flush=True)\n"
                              "for line in sys.stdin:\n"
                              "    print('{\"seconds\": 0.5}', flush=True)\n";
  }
  ~BenchPeerTest() override { std::remove(script_.c_str()); }
  std::unique_ptr<BenchPeer> Peer(const std::string& name) {
    return std::make_unique<BenchPeer>("python3", script_, std::vector<std::string>{name});
  }
  std::string script_;
};

TEST_F(BenchPeerTest, TellsItsNameAndAnswers) {
  const auto peer = Peer("one");
  EXPECT_EQ(peer->name(), "one");
  EXPECT_EQ(peer->Run(3), 0.5);
}

// Each destructor waits for its child, which waits for the end of its input.
TEST_F(BenchPeerTest, EndsWhileLaterPeersLive) {
  auto first = Peer("first");
  const auto second = Peer("second");
  first.reset();
  EXPECT_EQ(second->Run(1), 0.5);
}

}  // namespace
}  // namespace attnd::kernels::bench
