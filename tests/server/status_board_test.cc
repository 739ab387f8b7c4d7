#include "server/status_board.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/metrics.h"
#include "server/server_flags.h"
#include "tests/support/await.h"

namespace attnd {
namespace {

using std::chrono::milliseconds;
using testing::Await;

TEST(StatusBoardTest, ListsEveryFlagWithTheValueInEffect) {
  ServerConfig config;
  config.threads = 3;
  const auto flags = FlagsInEffect(config);
  EXPECT_EQ(flags.size(), ServerFlags().size());
  const auto threads = std::find_if(flags.begin(), flags.end(), [](const StatusFacts::Flag& flag) {
    return flag.name == "threads";
  });
  ASSERT_NE(threads, flags.end());
  EXPECT_EQ(threads->value, "3");
  EXPECT_EQ(threads->default_value, "0");
}

TEST(StatusBoardTest, TellsHealthAndWhatItReads) {
  SteadyClock clock;
  HealthState health;
  Metrics metrics({}, "cpu:0", clock);
  metrics.RecordRequest(Method::kDecode, 0, milliseconds(1));
  StatusBoard board({}, clock, health, [&metrics] { return metrics.Families(); });
  auto report = nlohmann::json::parse(board.Json());
  EXPECT_EQ(report["serving"], false);
  EXPECT_EQ(report["reason"], "starting");
  EXPECT_EQ(report["answers_by_code"]["OK"], 1);
  EXPECT_LT(report["uptime_seconds"], 60);
  health.Set(HealthState::State::kServing);
  EXPECT_EQ(nlohmann::json::parse(board.Json())["serving"], true);
}

TEST(StatusBoardTest, ReadsNothingOfItsOwnAccordOnceStopped) {
  SteadyClock clock;
  HealthState health;
  std::atomic<int> reads{0};
  StatusBoard board({}, clock, health, [&reads] {
    ++reads;
    return std::vector<prometheus::MetricFamily>();
  });
  EXPECT_TRUE(Await([&] { return reads != 0; }));
  board.Stop();
  const int before = reads;
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(reads, before);
  EXPECT_NE(board.Json(), "");
  board.Stop();
}

}  // namespace
}  // namespace attnd
