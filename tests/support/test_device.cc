#include "tests/support/test_device.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "server/cpu_backend.h"
#include "server/cuda_device.h"

namespace attnd::testing {
namespace {

absl::StatusOr<DeviceChoice> Choose() {
  return ChooseDevice(TestDevice(), "auto", ReadCudaFacts(),
                      CompiledArchitectures(kernels::KernelTable()));
}

class DeviceEnvironment final : public ::testing::Environment {
 public:
  void SetUp() override {
    const auto choice = Choose();
    if (choice.ok()) return;
    const std::string reason(choice.status().message());
    // GoogleTest prints nothing of the kind when a whole program is skipped; CTest looks for it.
    std::printf("[  SKIPPED ] all tests: %s\n", reason.c_str());
    GTEST_SKIP() << reason;
  }
};

[[maybe_unused]] const auto* const g_environment =
    ::testing::AddGlobalTestEnvironment(new DeviceEnvironment);

}  // namespace

std::string TestDevice() {
  const char* device = std::getenv("ATTND_TEST_DEVICE");
  return device == nullptr ? "cpu" : device;
}

std::unique_ptr<AttentionBackend> MakeTestBackend(const ServerConfig& config, const Clock& clock,
                                                  Metrics& metrics) {
  const auto choice = Choose();
  EXPECT_TRUE(choice.ok()) << choice.status();
  if (!choice.ok()) return nullptr;
  if (choice->cuda) {
    auto backend = MakeCudaBackend(config, *choice, metrics);
    EXPECT_TRUE(backend.ok()) << backend.status();
    return backend.ok() ? *std::move(backend) : nullptr;
  }
  auto backend = CpuBackend::Create(config, clock, metrics);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return backend.ok() ? *std::move(backend) : nullptr;
}

}  // namespace attnd::testing
