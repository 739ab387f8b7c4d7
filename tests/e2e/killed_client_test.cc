// Client processes that are killed in the middle of a long generation.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <string>

#include "tests/support/await.h"
#include "tests/support/child_process.h"
#include "tests/support/exposition_parser.h"
#include "tests/support/local_server.h"

namespace attnd::testing {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

// Of one stream a worker.
const std::string kSteps = "kind=decode,heads=2,head_dim=32,prompt=0,steps=10000,mode=stream,";

// Eight in turn, where only one sequence may live at a time.
TEST(KilledClientTest, TheWorkOfAKilledClientStopsAndItsPlacesAreFree) {
  ServerConfig config = SmallConfig();
  config.max_in_flight_per_stream = 4;
  config.max_sequences = 1;
  config.default_lease = Milliseconds(400);
  LocalServer local(config);
  for (int client = 0; client < 8; ++client) {
    const std::int64_t before = local.backend.batches();
    ChildProcess generation({ATTND_ATTNLOAD, "run", "--server", local.server->address(),
                             "--scenario", kSteps + "workers=1", "--warmup", "0", "--duration",
                             "60", "--no_floor"});
    ASSERT_TRUE(Await([&] { return local.backend.batches() >= before + 10; })) << client;
    EXPECT_EQ(generation.End(SIGKILL), 128 + SIGKILL);
    const auto killed = steady_clock::now();
    const std::int64_t launched = local.backend.batches();
    ASSERT_TRUE(Await([&local] { return local.server->live_calls() == 0; }));
    // The place of its sequence is free when the lease has ended.
    ASSERT_TRUE(Await([&local] {
      const auto snapshot = local.server->GetSnapshot();
      return snapshot.sequences_active + snapshot.sequences_idle == 0 && snapshot.pages_used == 0;
    }));
    EXPECT_LT(steady_clock::now() - killed, seconds(1));
    EXPECT_TRUE(local.AwaitIdle());
    EXPECT_LE(local.backend.batches(), launched + 5) << "what it had sent before";
  }
  const Exposition page = ParseExposition(local.server->MetricsText());
  for (const char* method : {"CreateSequence", "DecodeStream", "Decode"}) {
    EXPECT_EQ(
        page.Value("attnd_requests_total", {{"method", method}, {"code", "RESOURCE_EXHAUSTED"}}), 0)
        << method;
  }
  EXPECT_GE(page.Value("attnd_requests_total", {{"method", "CreateSequence"}, {"code", "OK"}})
                .value_or(0),
            8);
}

// Its workers are processes of their own, and would go on to the end of their run.
TEST(KilledClientTest, TheWorkersOfAKilledLoadGeneratorEndWithIt) {
  LocalServer local;
  ChildProcess generator({ATTND_ATTNLOAD, "run", "--server", local.server->address(), "--scenario",
                          kSteps + "workers=3", "--processes", "3", "--warmup", "0", "--duration",
                          "60", "--no_floor"});
  ASSERT_TRUE(Await([&] { return local.server->live_calls() == 3; }));
  EXPECT_EQ(generator.End(SIGKILL), 128 + SIGKILL);
  EXPECT_TRUE(Await([&] { return local.server->live_calls() == 0; }));
  EXPECT_TRUE(local.AwaitIdle());
}

}  // namespace
}  // namespace attnd::testing
