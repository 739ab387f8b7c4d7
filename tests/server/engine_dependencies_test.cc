// What the engine brings with it. This program links nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "server/error_status.h"

namespace attnd {
namespace {

TEST(EngineDependenciesTest, TheEngineRunsWithoutGrpc) {
  EXPECT_EQ(ErrorDetailOf(InvalidField("field", "1", "2")).field(), "field");
  std::ifstream file("/proc/self/maps");
  const std::string maps{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(maps, ::testing::HasSubstr("libprotobuf")) << "shared libraries show here";
  EXPECT_THAT(maps, ::testing::Not(::testing::HasSubstr("libgrpc")));
}

}  // namespace
}  // namespace attnd
