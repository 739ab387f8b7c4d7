// What the server exports of a GPU's sensors, beside what nvidia-smi tells of the same GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>

#include "tests/support/await.h"
#include "tests/support/exposition_parser.h"
#include "tests/support/local_server.h"
#include "tests/support/run_program.h"
#include "tests/support/test_device.h"

namespace attnd::testing {
namespace {

using Labels = std::map<std::string, std::string>;

std::string Uuid(const LocalServer& server) {
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  EXPECT_TRUE(server.stub->GetServerInfo(&context, {}, &info).ok());
  return info.devices(0).uuid();
}

TEST(GpuSensorsE2eTest, AgreeWithNvidiaSmi) {
  LocalServer server;
  const auto read = [&server](const char* name, Labels labels) {
    labels["device"] = TestDevice();
    return ParseExposition(server.server->MetricsText()).Value(name, labels);
  };
  ASSERT_TRUE(Await([&] { return read("attnd_device_temperature_celsius", {}).has_value(); }))
      << "no NVML";
  const ProgramResult told = RunProgram(
      "nvidia-smi", "-i " + Uuid(server) +
                        " --format=csv,noheader,nounits --query-gpu=memory.total,memory.used,"
                        "temperature.gpu,power.draw,clocks.sm,clocks.mem,clocks.max.sm");
  ASSERT_EQ(told.exit_code, 0) << told.output << told.errors;
  std::istringstream fields(told.output);
  const auto next = [&fields] {
    std::string field;
    std::getline(fields, field, ',');
    return std::stod(field);
  };
  constexpr double kMiB = 1 << 20;
  const double total = next() * kMiB, used = next() * kMiB;
  const double celsius = next(), watts = next(), sm_mhz = next(), memory_mhz = next(),
               max_sm_mhz = next();
  // nvidia-smi leaves out what the driver itself holds; a figure may have moved in between.
  const double held = read("attnd_device_memory_bytes", {{"state", "used"}}).value_or(0);
  const double free = read("attnd_device_memory_bytes", {{"state", "free"}}).value_or(0);
  EXPECT_NEAR(held + free, total, 0.02 * total);
  EXPECT_NEAR(held, used, 0.02 * total);
  EXPECT_NEAR(*read("attnd_device_temperature_celsius", {}), celsius, 5);
  EXPECT_NEAR(read("attnd_device_power_watts", {}).value_or(0), watts, 0.5 * watts);
  EXPECT_NEAR(read("attnd_device_clock_hertz", {{"clock", "memory"}}).value_or(0), memory_mhz * 1e6,
              0.02 * memory_mhz * 1e6);
  // The SM clock rises and falls with the load: near the one told, or anywhere up to the largest.
  const double sm_hertz = read("attnd_device_clock_hertz", {{"clock", "sm"}}).value_or(0);
  EXPECT_GT(sm_hertz, 0);
  EXPECT_LE(sm_hertz, std::max(max_sm_mhz, sm_mhz) * 1e6 * 1.01);
  for (const char* unit : {"compute", "memory"}) {
    const auto share = read("attnd_device_utilization_ratio", {{"unit", unit}});
    if (share) {  // not told under MIG
      EXPECT_GE(*share, 0);
      EXPECT_LE(*share, 1);
    }
  }
}

}  // namespace
}  // namespace attnd::testing
