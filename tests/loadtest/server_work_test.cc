#include "loadtest/server_work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <string>
#include <thread>

namespace attnd::loadtest {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

Json StatusAt(double time, double launches, double queued) {
  return {{"time", time},
          {"uptime_seconds", time - 1000},
          {"kernels",
           {{{"kernel", "cpu/a"},
             {"device", "cpu"},
             {"total", {{"launches", launches}, {"busy_seconds", launches * 2}}}},
            {{"kernel", "cpu/idle"}, {"device", "cpu"}, {"total", {{"launches", 4}}}}}},
          {"stages", {{"queue", {{"count", queued}, {"seconds", queued * 3}}}}},
          {"batches", {{"sequences", {{"bounds", {1, 2}}, {"counts", {launches, 0, 1}}}}}},
          {"ceilings", Json::array({{{"value", 5}}})}};
}

TEST(ServerWorkTest, IsTheDifferenceOfTwoReadings) {
  const auto work = ServerWork(StatusAt(2000, 10, 1), StatusAt(2005, 13, 1));
  ASSERT_TRUE(work.ok()) << work.status();
  EXPECT_EQ((*work)["seconds"], 5);
  ASSERT_EQ((*work)["kernels"].size(), 1U) << "one did not run";
  EXPECT_EQ((*work)["kernels"][0]["kernel"], "cpu/a");
  EXPECT_EQ((*work)["kernels"][0]["launches"], 3);
  EXPECT_EQ((*work)["kernels"][0]["busy_seconds"], 6);
  EXPECT_TRUE((*work)["stages"].empty()) << "no request passed it";
  EXPECT_EQ((*work)["batch_sequences"]["counts"], Json({3, 0, 0}));
  EXPECT_EQ((*work)["ceilings"][0]["value"], 5);
}

TEST(ServerWorkTest, CountsWhatAppearedInBetween) {
  Json before = StatusAt(2000, 10, 0);
  before["kernels"] = Json::array();
  before["stages"] = Json::object();
  const auto work = ServerWork(before, StatusAt(2001, 10, 2));
  ASSERT_TRUE(work.ok()) << work.status();
  EXPECT_EQ((*work)["kernels"].size(), 2U);
  EXPECT_EQ((*work)["kernels"][0]["launches"], 10);
  EXPECT_EQ((*work)["stages"]["queue"]["seconds"], 6);
}

TEST(ServerWorkTest, ARestartInBetweenIsTold) {
  Json after = StatusAt(2005, 3, 1);
  after["uptime_seconds"] = 2;
  EXPECT_FALSE(ServerWork(StatusAt(2000, 10, 1), after).ok());
}

TEST(ServerWorkTest, AnswersThatAreNoStatusAreRefused) {
  httplib::Server server;
  std::string body = "{}";
  server.Get("/statusz.json", [&body](const httplib::Request&, httplib::Response& response) {
    response.set_content(body, "application/json");
  });
  const int port = server.bind_to_any_port("127.0.0.1");
  std::thread thread([&server] { server.listen_after_bind(); });
  const std::string admin = "127.0.0.1:" + std::to_string(port);
  EXPECT_THAT(std::string(ReadServerStatus(admin).status().message()), HasSubstr("kernels"));
  body = "no JSON";
  EXPECT_FALSE(ReadServerStatus(admin).ok());
  body = StatusAt(1, 1, 1).dump();
  EXPECT_TRUE(ReadServerStatus(admin).ok()) << ReadServerStatus(admin).status();
  server.stop();
  thread.join();
  EXPECT_THAT(std::string(ReadServerStatus(admin).status().message()), HasSubstr(admin));
}

}  // namespace
}  // namespace attnd::loadtest
