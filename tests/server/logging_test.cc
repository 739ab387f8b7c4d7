#include "server/logging.h"

#include <atomic>
#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace attnd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class LoggingTest : public ::testing::Test {
 protected:
  ~LoggingTest() override { EXPECT_TRUE(SetUpLogging("info", "text").ok()); }
  void LogAs(LogFormat format, LogLevel level = LogLevel::kTrace) {
    LogToStream(stream_, level, format);
  }
  std::vector<std::string> Lines() const {
    std::vector<std::string> lines;
    std::istringstream text(stream_.str());
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }
  std::ostringstream stream_;
};

TEST_F(LoggingTest, WritesTextWithFields) {
  LogAs(LogFormat::kText);
  Log(LogLevel::kInfo, "listening",
      {{"address", "127.0.0.1:8001"}, {"threads", 4}, {"tls", false}});
  ASSERT_EQ(Lines().size(), 1u);
  EXPECT_THAT(Lines()[0], EndsWith("info listening address=127.0.0.1:8001 threads=4 tls=false"));
  EXPECT_THAT(Lines()[0].substr(0, 25), MatchesRegex("....-..-..T..:..:..\\....Z "));
}

TEST_F(LoggingTest, WritesAJsonObjectALine) {
  LogAs(LogFormat::kJson);
  Log(LogLevel::kWarn, "slow \"request\"",
      {{"error", "line one\nline two"}, {"count", 3}, {"seconds", 0.5}, {"late", true}});
  ASSERT_EQ(Lines().size(), 1u);
  const auto line = nlohmann::json::parse(Lines()[0]);
  EXPECT_EQ(line["level"], "warning");
  EXPECT_EQ(line["message"], "slow \"request\"");
  EXPECT_EQ(line["error"], "line one\nline two");
  EXPECT_EQ(line["count"], 3);
  EXPECT_EQ(line["seconds"], 0.5);
  EXPECT_EQ(line["late"], true);
  EXPECT_TRUE(line["time"].is_string());
}

TEST_F(LoggingTest, NoValueCanForgeALine) {
  LogAs(LogFormat::kText);
  Log(LogLevel::kInfo, "request failed",
      {{"error", "x\n2026-01-01T00:00:00.000Z error forged\x1b[31m"}});
  ASSERT_EQ(Lines().size(), 1u);
  EXPECT_THAT(Lines()[0], HasSubstr(R"(error="x\n2026)"));
  EXPECT_EQ(Lines()[0].find('\x1b'), std::string::npos);
}

TEST_F(LoggingTest, KeepsJsonValidForAnyBytes) {
  LogAs(LogFormat::kJson);
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  Log(LogLevel::kInfo, "m",
      {{"value", bytes},
       {"nan", std::nan("")},
       {"infinity", std::numeric_limits<double>::infinity()}});
  ASSERT_EQ(Lines().size(), 1u);
  EXPECT_TRUE(nlohmann::json::accept(Lines()[0])) << Lines()[0];
}

TEST_F(LoggingTest, CutsLongValues) {
  LogAs(LogFormat::kText);
  Log(LogLevel::kInfo, "m", {{"value", std::string(1'000'000, 'x')}});
  EXPECT_LT(Lines()[0].size(), 1200u);
  EXPECT_THAT(Lines()[0], EndsWith("...\""));
}

TEST_F(LoggingTest, BracesAreNoFormat) {
  LogAs(LogFormat::kText);
  Log(LogLevel::kInfo, "a {} b {0} %s", {{"value", "{}"}});
  EXPECT_THAT(Lines()[0], EndsWith("a {} b {0} %s value={}"));
}

TEST_F(LoggingTest, LeavesOutWhatIsBelowTheLevel) {
  LogAs(LogFormat::kText, LogLevel::kWarn);
  EXPECT_FALSE(LogEnabled(LogLevel::kInfo));
  EXPECT_TRUE(LogEnabled(LogLevel::kError));
  Log(LogLevel::kInfo, "no");
  Log(LogLevel::kWarn, "yes");
  EXPECT_EQ(Lines().size(), 1u);
}

TEST_F(LoggingTest, RefusesUnknownLevelsAndFormats) {
  EXPECT_FALSE(SetUpLogging("loud", "text").ok());
  EXPECT_FALSE(SetUpLogging("info", "xml").ok());
  for (const char* level : {"trace", "debug", "info", "warn", "error"}) {
    EXPECT_TRUE(SetUpLogging(level, "json").ok());
  }
  EXPECT_FALSE(LogEnabled(LogLevel::kWarn));
}

TEST_F(LoggingTest, KeepsLinesOfManyThreadsWhole) {
  LogAs(LogFormat::kJson);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([thread] {
      for (int i = 0; i < 50; ++i) Log(LogLevel::kInfo, "m", {{"thread", thread}, {"i", i}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Lines().size(), 400u);
  for (const std::string& line : Lines()) EXPECT_TRUE(nlohmann::json::accept(line)) << line;
}

TEST(LogGateTest, LetsOneThroughAnIntervalAndCountsTheRest) {
  LogGate gate(seconds(1));
  Clock::TimePoint now{seconds(100)};
  EXPECT_EQ(gate.Admit(now), 0);
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(gate.Admit(now + milliseconds(i * 100)));
  EXPECT_EQ(gate.Admit(now + seconds(1)), 5);
  EXPECT_EQ(gate.Admit(now + seconds(2)), 0);
}

TEST(LogGateTest, LetsExactlyOneOfManyThreadsThrough) {
  LogGate gate(seconds(1));
  std::atomic<int> admitted{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        if (gate.Admit(Clock::TimePoint(seconds(100)))) ++admitted;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(admitted, 1);
  EXPECT_EQ(gate.Admit(Clock::TimePoint(seconds(200))), 799);
}

}  // namespace
}  // namespace attnd
