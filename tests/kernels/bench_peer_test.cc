// Peers of attnbench: child processes that live as long as their object.
#include "kernels/bench/bench_peer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
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

std::string WhyNot(const std::string& python, const std::string& script) {
  try {
    const BenchPeer peer(python, script, {});
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(BenchPeerTest, APeerThatCannotRunSaysWhy) {
  std::ofstream(script_) << "print('{\"error\": \"No module named x\"}', flush=True)\n";
  const std::string why = WhyNot("python3", script_);
  EXPECT_NE(why.find("python3"), std::string::npos) << why;
  EXPECT_NE(why.find("No module named x"), std::string::npos) << why;
  EXPECT_NE(WhyNot("/nonexistent/python", script_).find("/nonexistent/python"), std::string::npos);
}

TEST_F(BenchPeerTest, APeerThatEndsSilentlyIsAnError) {
  std::ofstream(script_) << "raise SystemExit(1)\n";
  EXPECT_THROW(Peer("one"), std::runtime_error);
}

// Both of the tree's peers, under a Python without PyTorch.
TEST_F(BenchPeerTest, TheTreesPeersSayThatPyTorchIsMissing) {
  const std::string blocker = ::testing::TempDir() + "no_torch_" + std::to_string(getpid());
  std::filesystem::create_directory(blocker);
  std::ofstream(blocker + "/torch.py") << "raise ImportError('No module named torch')\n";
  setenv("PYTHONPATH", blocker.c_str(), 1);
  for (const char* script : {"/torch_cpu_sdpa.py", "/torch_cuda_sdpa.py"}) {
    EXPECT_NE(WhyNot("python3", std::string(ATTND_PEER_FOLDER) + script).find("PyTorch"),
              std::string::npos)
        << script;
  }
  unsetenv("PYTHONPATH");
  std::filesystem::remove_all(blocker);
}

}  // namespace
}  // namespace attnd::kernels::bench
