#include "server/device_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace attnd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

DeviceChoice T4() {
  DeviceChoice choice;
  choice.cuda = true;
  choice.device_name = "cuda:0";
  choice.kernel_arch = "sm75";
  choice.gpu.name = "Tesla T4";
  choice.gpu.compute_capability = 75;
  choice.gpu.memory_bytes = std::int64_t{15} << 30;
  return choice;
}

CudaFacts Cuda() {
  CudaFacts facts;
  facts.built = true;
  facts.needed_version = 13000;
  facts.supported_version = 13010;
  facts.driver_version = "580.0.1";
  return facts;
}

TEST(DeviceReportTest, TellsEverythingThatExplainsLaterFigures) {
  NvmlFacts nvml;
  nvml.driver_version = "580.159.03";
  nvml.ecc = true;
  nvml.persistence = false;
  nvml.power_limit_watts = 70;
  nvml.sm_clock_mhz = 585;
  nvml.max_sm_clock_mhz = 1590;
  nvml.memory_clock_mhz = 5000;
  nvml.max_memory_clock_mhz = 5001;
  nvml.throttle_reasons = 1;
  const DeviceReport report =
      ReportDevice(T4(), Cuda(), nvml, std::int64_t{11} << 30, std::int64_t{512} << 20);
  EXPECT_EQ(report.Text(),
            "gpu Tesla T4; device cuda:0; compute capability 7.5; kernels sm75; driver 580.159.03; "
            "CUDA 13.1, built for 13.0; memory 15.0 GiB; cache 11.0 GiB; left 0.5 GiB; ECC on; "
            "power limit 70 W; SM clock 585 of 1590 MHz; memory clock 5000 of 5001 MHz; throttled "
            "by idle; persistence off");
  EXPECT_EQ(report.warning, "");
}

TEST(DeviceReportTest, WhatNobodyTellsIsUnknown) {
  const std::string text = ReportDevice(T4(), Cuda(), {}, 0, 0).Text();
  EXPECT_THAT(text,
              AllOf(HasSubstr("driver 580.0.1"), HasSubstr("ECC unknown"),
                    HasSubstr("power limit unknown"), HasSubstr("SM clock unknown of unknown"),
                    HasSubstr("throttled by unknown"), HasSubstr("persistence unknown")));
}

TEST(DeviceReportTest, WarnsOfACardThatIsHeldBack) {
  NvmlFacts nvml;
  nvml.throttle_reasons = 0x1 | 0x4 | 0x40;
  const DeviceReport report = ReportDevice(T4(), Cuda(), nvml, 0, 0);
  EXPECT_EQ(report.warning, "the GPU is held back: power cap, hardware thermal slowdown");
}

TEST(DeviceReportTest, ThrottleBitsHaveNames) {
  EXPECT_EQ(ThrottleText(0), "none");
  EXPECT_EQ(ThrottleText(0x2), "application clocks");
  EXPECT_EQ(ThrottleText(0x4000000000000001ULL), "idle, 0x4000000000000000");
}

TEST(DeviceReportTest, FindsTheDriverVersionInItsFile) {
  EXPECT_EQ(ParseDriverVersion("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  "
                               "580.159.04  Release Build\nGCC version:  gcc version 12.2.0\n"),
            "580.159.04");
  EXPECT_EQ(ParseDriverVersion("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat"),
            "535.104.05");
  EXPECT_EQ(ParseDriverVersion(""), "");
  EXPECT_EQ(ParseDriverVersion("no version . here"), "");
}

}  // namespace
}  // namespace attnd
