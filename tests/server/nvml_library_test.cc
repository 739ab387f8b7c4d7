#include "server/nvml_library.h"

#include <gtest/gtest.h>

namespace attnd {
namespace {

TEST(NvmlLibraryTest, ReadsWhatTheLibraryTells) {
  const NvmlFacts facts = ReadNvmlFacts(ATTND_FAKE_NVML, "GPU-fake");
  EXPECT_EQ(facts.driver_version, "580.1.2");
  EXPECT_EQ(facts.persistence, true);
  EXPECT_EQ(facts.power_limit_watts, 70.5);
  EXPECT_EQ(facts.sm_clock_mhz, 585);
  EXPECT_EQ(facts.max_sm_clock_mhz, 1590);
  EXPECT_EQ(facts.memory_clock_mhz, 5000);
  EXPECT_EQ(facts.max_memory_clock_mhz, 5001);
}

TEST(NvmlLibraryTest, WhatFailsOrIsMissingStaysAbsent) {
  const NvmlFacts facts = ReadNvmlFacts(ATTND_FAKE_NVML, "GPU-fake");
  EXPECT_FALSE(facts.ecc.has_value());
  EXPECT_FALSE(facts.throttle_reasons.has_value());
}

TEST(NvmlLibraryTest, AnUnknownGpuLeavesTheDriversVersion) {
  const NvmlFacts facts = ReadNvmlFacts(ATTND_FAKE_NVML, "GPU-other");
  EXPECT_EQ(facts.driver_version, "580.1.2");
  EXPECT_FALSE(facts.power_limit_watts.has_value());
}

TEST(NvmlLibraryTest, AMachineWithoutTheLibraryKnowsNothing) {
  for (const char* library : {"/no/such/library.so", "/dev/null"}) {
    const NvmlFacts facts = ReadNvmlFacts(library, "GPU-fake");
    EXPECT_EQ(facts.driver_version, "") << library;
    EXPECT_FALSE(facts.persistence.has_value()) << library;
  }
}

TEST(NvmlLibraryTest, SensorsReadInBaseUnits) {
  const auto sensors = OpenNvmlSensors(ATTND_FAKE_NVML, "GPU-fake");
  ASSERT_NE(sensors, nullptr);
  const DeviceReading reading = sensors->Read();
  EXPECT_EQ(reading.memory_used_bytes, 11.0 * (1 << 30));
  EXPECT_EQ(reading.memory_free_bytes, 5.0 * (1 << 30));
  EXPECT_EQ(reading.compute_utilization, 0.75);
  EXPECT_EQ(reading.memory_utilization, 0.4);
  EXPECT_EQ(reading.sm_clock_hertz, 585e6);
  EXPECT_EQ(reading.memory_clock_hertz, 5e9);
  EXPECT_EQ(reading.power_watts, 65.5);
  EXPECT_EQ(reading.temperature_celsius, 61);
}

TEST(NvmlLibraryTest, WithoutAUuidTheFirstGpuIsRead) {
  const auto sensors = OpenNvmlSensors(ATTND_FAKE_NVML, "");
  ASSERT_NE(sensors, nullptr);
  EXPECT_EQ(sensors->Read().power_watts, 65.5);
}

TEST(NvmlLibraryTest, ThereAreNoSensorsWithoutTheLibraryOrTheGpu) {
  EXPECT_EQ(OpenNvmlSensors("/no/such/library.so", ""), nullptr);
  EXPECT_EQ(OpenNvmlSensors("/dev/null", ""), nullptr);
  EXPECT_EQ(OpenNvmlSensors(ATTND_FAKE_NVML, "GPU-other"), nullptr);
}

}  // namespace
}  // namespace attnd
