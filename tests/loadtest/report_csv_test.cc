#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "loadtest/report.h"
#include "nlohmann/json.hpp"

namespace attnd::loadtest {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<std::string> Lines(const Json& report) {
  std::istringstream text(ReportCsv(report));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

Json RunReportOf(const std::string& name) {
  RunReport run;
  run.scenario.name = name;
  run.open_loop = true;
  run.offered_rate = 250;
  run.result.sent = 7;
  run.result.ok = 5;
  run.result.failures["UNAVAILABLE"] = 2;
  run.result.latency.Record(std::chrono::microseconds(100));
  return {{"date", "today"}, {"run", RunJson(run)}};
}

TEST(ReportCsvTest, ARunIsALine) {
  const auto lines = Lines(RunReportOf("steps"));
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_THAT(lines[0], StartsWith("date,name,side,loop,offered_requests_per_second,sent,ok"));
  EXPECT_THAT(lines[1], StartsWith("today,steps,,open,250.0,7,5,2,0,"));
  EXPECT_THAT(lines[1], HasSubstr("UNAVAILABLE 2"));
  const auto commas = [](const std::string& line) {
    return std::count(line.begin(), line.end(), ',');
  };
  EXPECT_EQ(commas(lines[0]), commas(lines[1]));
}

TEST(ReportCsvTest, AComparisonHasALineASideAndOneForItsFloor) {
  ScenarioComparison comparison;
  comparison.scenario.name = "steps";
  comparison.fused.block_rates = {10, 30, 20};
  comparison.naive.block_rates = {5};
  comparison.alone.emplace();
  comparison.batching_on_over_off.emplace();
  const Json report = {{"scenarios", Json::array({ComparisonJson(comparison)})}};
  const auto lines = Lines(report);
  ASSERT_EQ(lines.size(), 1U + 3 + 1);
  EXPECT_THAT(lines[1], StartsWith(",steps,fused,closed,"));
  EXPECT_THAT(lines[1], HasSubstr(",20.0,"));
  EXPECT_THAT(lines[2], StartsWith(",steps,naive,"));
  EXPECT_THAT(lines[3], StartsWith(",steps,alone,"));
  EXPECT_THAT(lines[4], StartsWith(",steps,floor,"));
}

TEST(ReportCsvTest, NamesWithCommasAndQuotesStayOneCell) {
  EXPECT_THAT(Lines(RunReportOf("a,\"b\""))[1], StartsWith("today,\"a,\"\"b\"\"\",,open"));
}

}  // namespace
}  // namespace attnd::loadtest
