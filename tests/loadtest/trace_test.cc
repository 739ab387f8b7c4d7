#include "loadtest/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace attnd::loadtest {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using ::testing::HasSubstr;

constexpr char kAzureHeader[] = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n";
constexpr char kTraces[] = ATTND_TRACES;

TEST(TraceTest, AzureLinesAreReadAcrossMidnightOfALeapDay) {
  const auto trace = ReadTrace(std::string(kTraces) + "/azure_hand_made.csv");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 4U);
  EXPECT_EQ(trace->at(0).arrival, nanoseconds(0));
  EXPECT_EQ(trace->at(0).prompt_tokens, 40);
  EXPECT_EQ(trace->at(0).output_tokens, 5);
  EXPECT_EQ(trace->at(1).arrival, milliseconds(250));
  EXPECT_EQ(trace->at(2).arrival, milliseconds(500) + nanoseconds(100));
  // A last line without an end, and no output: a session answers at least its first token.
  EXPECT_EQ(trace->at(3).arrival, milliseconds(750));
  EXPECT_EQ(trace->at(3).output_tokens, 1);
}

TEST(TraceTest, MooncakeLinesAreReadFromTheirFirstTimestamp) {
  const auto trace = ReadTrace(std::string(kTraces) + "/mooncake_hand_made.jsonl");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 3U);
  EXPECT_EQ(trace->at(1).arrival, nanoseconds(0));
  EXPECT_EQ(trace->at(1).prompt_tokens, 80);
  EXPECT_EQ(trace->at(2).arrival, milliseconds(250));
  EXPECT_EQ(trace->at(2).output_tokens, 1);
}

TEST(TraceTest, MooncakeLinesNameTheBlocksOfTheirPrompts) {
  const auto trace = ReadTrace(std::string(kTraces) + "/mooncake_shared_prefix.jsonl");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_THAT(trace->at(1).blocks, ::testing::ElementsAre(0, 1, 3, 4, 5));
  EXPECT_EQ(trace->at(1).block_tokens, 512);
  EXPECT_EQ(WholeBlocks(trace->at(0)), 2U) << "1300 tokens: the third block is cut short";
  EXPECT_EQ(WholeBlocks(trace->at(2)), 4U);
  const Trace scaled = Scaled(*trace, {.lengths = 0.1});
  EXPECT_EQ(scaled[0].block_tokens, 51);
  EXPECT_EQ(WholeBlocks(scaled[0]), 2U);
  EXPECT_EQ(WholeBlocks(TraceRecord{}), 0U);
}

TEST(TraceTest, AWrongAzureLineIsNamed) {
  for (const char* line :
       {"2024-01-01 00:00:00.0,1", "yesterday,1,1", "2024-01-01 00:00:00.0,one,1",
        "2024-01-01 00:00:00.0,-1,1", "2024-01-01 00:00:00.0,1,99999999999"}) {
    const auto trace = ParseAzureTrace(kAzureHeader + std::string(line));
    ASSERT_FALSE(trace.ok()) << line;
    EXPECT_THAT(trace.status().message(), HasSubstr("line 2")) << line;
  }
  EXPECT_THAT(ParseAzureTrace("time,in,out\n").status().message(), HasSubstr("line 1"));
}

TEST(TraceTest, AWrongMooncakeLineIsNamed) {
  const std::string good = R"({"timestamp": 5, "input_length": 1, "output_length": 1})";
  for (const char* line :
       {"{", "[]", R"({"timestamp": 5, "input_length": 1})",
        R"({"timestamp": 5, "input_length": 1.5, "output_length": 1})",
        R"({"timestamp": 4, "input_length": 1, "output_length": 1})",
        R"({"timestamp": 5, "input_length": 1, "output_length": 1, "hash_ids": 3})",
        R"({"timestamp": 5, "input_length": 1, "output_length": 1, "hash_ids": ["a"]})"}) {
    const auto trace = ParseMooncakeTrace(good + "\n" + line + "\n");
    ASSERT_FALSE(trace.ok()) << line;
    EXPECT_THAT(trace.status().message(), HasSubstr("line 2")) << line;
  }
}

TEST(TraceTest, AnEmptyTraceAndAnUnknownFileAreRefused) {
  EXPECT_FALSE(ParseAzureTrace(kAzureHeader).ok());
  EXPECT_FALSE(ParseMooncakeTrace("\n").ok());
  EXPECT_FALSE(ReadTrace("/nonexistent/trace.csv").ok());
  const std::string other = std::string(kTraces) + "/../minilm_l6.safetensors";
  EXPECT_THAT(std::string(ReadTrace(other).status().message()), HasSubstr(".jsonl"));
}

TEST(TraceTest, ScalingShortensGapsAndLengthsAndCuts) {
  const Trace trace = {
      {milliseconds(0), 100, 10, {}}, {milliseconds(600), 3, 1, {}}, {milliseconds(900), 5, 5, {}}};
  const Trace scaled = Scaled(trace, {.speed = 3, .lengths = 0.1, .limit = 2});
  ASSERT_EQ(scaled.size(), 2U);
  EXPECT_EQ(scaled[0].prompt_tokens, 10);
  EXPECT_EQ(scaled[0].output_tokens, 1);
  EXPECT_EQ(scaled[1].arrival, milliseconds(200));
  EXPECT_EQ(scaled[1].prompt_tokens, 1);
  EXPECT_EQ(Scaled(trace, {}).size(), 3U);
}

TEST(TraceTest, ArrivalsAreTheRecordsAndThenNoneWithinADay) {
  const auto arrivals = TraceArrivals({{milliseconds(0), 1, 1, {}}, {milliseconds(7), 1, 1, {}}});
  EXPECT_EQ(arrivals->Next(), milliseconds(0));
  EXPECT_EQ(arrivals->Next(), milliseconds(7));
  EXPECT_GT(arrivals->Next(), std::chrono::hours(24));
}

}  // namespace
}  // namespace attnd::loadtest
