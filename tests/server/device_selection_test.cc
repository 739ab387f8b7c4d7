#include "server/device_selection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace attnd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

GpuFacts Gpu(int index, int capability, const char* name) {
  GpuFacts gpu;
  gpu.index = index;
  gpu.name = name;
  gpu.compute_capability = capability;
  return gpu;
}

// A machine whose driver runs this build, with these GPUs.
CudaFacts Machine(std::vector<GpuFacts> gpus) {
  CudaFacts facts;
  facts.built = true;
  facts.needed_version = 13000;
  facts.supported_version = 13000;
  facts.driver_version = "580.159.03";
  facts.gpus = std::move(gpus);
  return facts;
}

CudaFacts OldDriver() {
  CudaFacts facts = Machine({});
  facts.supported_version = 12020;
  facts.driver_version = "535.104.05";
  return facts;
}

const std::vector<int> kSm75AndSm80 = {75, 80};

absl::StatusOr<DeviceChoice> Choose(const char* device, const CudaFacts& facts,
                                    const char* arch = "auto") {
  return ChooseDevice(device, arch, facts, kSm75AndSm80);
}

TEST(DeviceSelectionTest, CpuNeedsNoFacts) {
  const auto choice = Choose("cpu", {});
  ASSERT_TRUE(choice.ok());
  EXPECT_FALSE(choice->cuda);
  EXPECT_EQ(choice->device_name, "cpu");
  EXPECT_EQ(choice->notice, "");
}

TEST(DeviceSelectionTest, KernelsOfAGpuAreNeverSilentlyIgnored) {
  const auto refused = Choose("cpu", {}, "sm75");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--kernel_arch: got 'sm75'"));
  const auto ignored = Choose("auto", {}, "sm75");
  ASSERT_TRUE(ignored.ok());
  EXPECT_FALSE(ignored->cuda);
  EXPECT_THAT(ignored->notice, HasSubstr("--kernel_arch=sm75 has no effect"));
  EXPECT_TRUE(ignored->notice_is_error);
}

TEST(DeviceSelectionTest, AutoTakesTheFirstGpuThatCanRunTheKernels) {
  const auto choice =
      Choose("auto", Machine({Gpu(0, 61, "Tesla P4"), Gpu(1, 75, "Tesla T4"), Gpu(2, 90, "H200")}));
  ASSERT_TRUE(choice.ok());
  EXPECT_TRUE(choice->cuda);
  EXPECT_EQ(choice->device_name, "cuda:1");
  EXPECT_EQ(choice->kernel_arch, "sm75");
  EXPECT_EQ(choice->row_capability, 75);
}

TEST(DeviceSelectionTest, AutoTakesTheNewestRowsThatTheGpuRuns) {
  const auto choice = Choose("auto", Machine({Gpu(0, 90, "H200")}));
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->kernel_arch, "sm80");
  EXPECT_EQ(choice->row_capability, 90);
}

TEST(DeviceSelectionTest, AutoWithoutADriverSaysInOneLineThatTheCpuServes) {
  CudaFacts facts = Machine({});
  facts.supported_version = 0;
  const auto choice = Choose("auto", facts);
  ASSERT_TRUE(choice.ok());
  EXPECT_FALSE(choice->cuda);
  EXPECT_EQ(choice->notice, "kernels run on the CPU: no NVIDIA driver");
  EXPECT_FALSE(choice->notice_is_error);
}

TEST(DeviceSelectionTest, AnOldDriverIsNeverHidden) {
  const auto named = AllOf(HasSubstr("535.104.05"), HasSubstr("CUDA 12.2"), HasSubstr("CUDA 13.0"),
                           HasSubstr("driver 580 or newer"), HasSubstr("install a newer driver"),
                           HasSubstr("cuda-compat-13-0"));
  const auto choice = Choose("auto", OldDriver());
  ASSERT_TRUE(choice.ok());
  EXPECT_FALSE(choice->cuda);
  EXPECT_TRUE(choice->notice_is_error);
  EXPECT_THAT(choice->notice, named);
  const auto insisting = Choose("cuda:0", OldDriver());
  ASSERT_FALSE(insisting.ok());
  EXPECT_THAT(std::string(insisting.status().message()), named);
}

// cuda-compat raises what the driver supports and leaves its version as it is.
TEST(DeviceSelectionTest, AnOldDriverWithTheCompatibilityPackageServes) {
  CudaFacts facts = Machine({Gpu(0, 75, "Tesla T4")});
  facts.driver_version = "535.104.05";
  EXPECT_TRUE(Choose("cuda:0", facts).ok());
}

TEST(DeviceSelectionTest, AnExplicitGpuIsServedOrRefusedNeverReplaced) {
  const CudaFacts two = Machine({Gpu(0, 61, "Tesla P4"), Gpu(1, 75, "Tesla T4")});
  EXPECT_EQ(Choose("cuda:1", two)->device_name, "cuda:1");
  EXPECT_THAT(std::string(Choose("cuda:2", two).status().message()), HasSubstr("has 2 GPUs"));
  EXPECT_THAT(std::string(Choose("cuda:0", two).status().message()),
              AllOf(HasSubstr("Tesla P4"), HasSubstr("6.1"), HasSubstr("7.5")));
  CudaFacts no_driver = Machine({});
  no_driver.supported_version = 0;
  EXPECT_THAT(std::string(Choose("cuda:0", no_driver).status().message()),
              HasSubstr("no NVIDIA driver"));
  EXPECT_THAT(std::string(Choose("cuda:0", {}).status().message()),
              HasSubstr("this build has no CUDA kernels"));
  EXPECT_THAT(std::string(Choose("cuda:0", Machine({})).status().message()), HasSubstr("no GPU"));
}

// The exit code tells them apart: what a new start may find mended, and what none will.
TEST(DeviceSelectionTest, OnlyWhatTheFlagsAndTheBuildDecideIsAWrongFlag) {
  EXPECT_EQ(Choose("cuda:0", {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Choose("cuda:0", Machine({Gpu(0, 75, "Tesla T4")}), "sm80").status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Choose("cuda:0", Machine({})).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Choose("cuda:0", OldDriver()).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(DeviceSelectionTest, ABrokenDriverIsNamed) {
  CudaFacts facts = Machine({});
  facts.fault = "system not yet initialized";
  EXPECT_THAT(std::string(Choose("cuda:0", facts).status().message()), HasSubstr(facts.fault));
  const auto choice = Choose("auto", facts);
  ASSERT_TRUE(choice.ok());
  EXPECT_TRUE(choice->notice_is_error);
  EXPECT_THAT(choice->notice, HasSubstr(facts.fault));
}

TEST(DeviceSelectionTest, OlderRowsCanBeForced) {
  const auto choice = Choose("cuda:0", Machine({Gpu(0, 90, "H200")}), "sm75");
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->kernel_arch, "sm75");
  EXPECT_EQ(choice->row_capability, 75);
}

TEST(DeviceSelectionTest, RowsThatAreNotThereOrTooNewAreRefused) {
  const CudaFacts h200 = Machine({Gpu(0, 90, "H200")});
  EXPECT_THAT(std::string(Choose("auto", h200, "sm90").status().message()),
              AllOf(HasSubstr("--kernel_arch: got 'sm90'"), HasSubstr("it has sm75, sm80")));
  EXPECT_THAT(
      std::string(Choose("auto", Machine({Gpu(0, 75, "Tesla T4")}), "sm80").status().message()),
      AllOf(HasSubstr("Tesla T4"), HasSubstr("7.5")));
}

TEST(DeviceSelectionTest, ArchitecturesComeFromTheNamesOfCudaRows) {
  const auto row = [](const char* name, kernels::DeviceKind device) {
    return kernels::KernelRow{name, kernels::Operation::kPrefill, device};
  };
  const std::vector<kernels::KernelRow> table = {row("sm80/prefill", kernels::DeviceKind::kCuda),
                                                 row("sm75/prefill", kernels::DeviceKind::kCuda),
                                                 row("any/append", kernels::DeviceKind::kCuda),
                                                 row("sm80/decode", kernels::DeviceKind::kCuda),
                                                 row("cpu/prefill", kernels::DeviceKind::kCpu)};
  EXPECT_EQ(CompiledArchitectures(table), kSm75AndSm80);
}

TEST(DeviceSelectionTest, DeviceIndexesAreNumbers) {
  EXPECT_EQ(CudaDeviceIndex("cuda:0"), 0);
  EXPECT_EQ(CudaDeviceIndex("cuda:15"), 15);
  for (const char* text : {"cuda", "cuda:", "cuda:-1", "cuda:x", "cuda:1x", "cuda:1000", "cpu"}) {
    EXPECT_EQ(CudaDeviceIndex(text), -1) << text;
  }
}

}  // namespace
}  // namespace attnd
