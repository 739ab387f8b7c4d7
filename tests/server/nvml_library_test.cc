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

}  // namespace
}  // namespace attnd
