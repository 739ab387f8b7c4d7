#include "server/cuda_memory_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/server_flags.h"

namespace attnd {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;
constexpr std::int64_t kSlab = std::int64_t{2} << 20;
const MachineResources kMachine{8 * kGiB, 4};

TEST(CudaMemoryBudgetTest, TheCacheTakesWhatArenasAndSpareLeave) {
  for (const std::int64_t free_bytes : {4 * kGiB, 15 * kGiB, 140 * kGiB}) {
    const auto config = ResolveCudaDefaults({}, kMachine, free_bytes);
    ASSERT_TRUE(config.ok()) << config.status();
    const std::int64_t taken = config->cache_bytes + 2 * ArenaBytes(*config);
    EXPECT_EQ(config->cache_bytes % kSlab, 0);
    EXPECT_GE(free_bytes - taken, kGiB / 4);
    EXPECT_LE(free_bytes - taken, kGiB / 4 + free_bytes / 32 + kSlab);
    EXPECT_EQ(config->threads, 4);
  }
}

// 8 GiB of host memory say nothing about the GPU.
TEST(CudaMemoryBudgetTest, MostOfABigCardIsCache) {
  const auto config = ResolveCudaDefaults({}, kMachine, 140 * kGiB);
  ASSERT_TRUE(config.ok());
  EXPECT_GT(config->cache_bytes, 120 * kGiB);
}

TEST(CudaMemoryBudgetTest, AnArenaHoldsTheLargestMessageItsAnswerAndTheWorkspace) {
  ServerConfig config;
  config.max_message_bytes = 64 << 20;
  const auto resolved = ResolveCudaDefaults(config, kMachine, 15 * kGiB);
  ASSERT_TRUE(resolved.ok());
  EXPECT_GE(ArenaBytes(*resolved), resolved->workspace_bytes + 3 * config.max_message_bytes);
}

// A field that only one of the two resolved would stay 0: a server without connections, say.
TEST(CudaMemoryBudgetTest, EverythingButMemoryIsResolvedAsOnTheCpu) {
  const auto gpu = ResolveCudaDefaults({}, kMachine, 15 * kGiB);
  const auto cpu = ResolveDefaults({}, kMachine);
  ASSERT_TRUE(gpu.ok() && cpu.ok());
  int compared = 0;
  for (const ServerFlag& flag : ServerFlags()) {
    if (flag.name == std::string("cache_bytes") || flag.name == std::string("workspace_bytes")) {
      continue;
    }
    EXPECT_EQ(ServerFlagText(flag, *gpu), ServerFlagText(flag, *cpu)) << flag.name;
    ++compared;
  }
  EXPECT_GT(compared, 20);
  EXPECT_GT(gpu->max_connections, 0);
}

TEST(CudaMemoryBudgetTest, ExplicitValuesAreKept) {
  ServerConfig config;
  config.cache_bytes = kGiB;
  config.workspace_bytes = kGiB / 4;
  config.threads = 3;
  const auto resolved = ResolveCudaDefaults(config, kMachine, 15 * kGiB);
  ASSERT_TRUE(resolved.ok());
  EXPECT_EQ(resolved->cache_bytes, kGiB);
  EXPECT_EQ(resolved->workspace_bytes, kGiB / 4);
  EXPECT_EQ(resolved->threads, 3);
}

TEST(CudaMemoryBudgetTest, WhatDoesNotFitIsRefusedByItsFlag) {
  ServerConfig config;
  config.cache_bytes = 15 * kGiB;
  EXPECT_THAT(std::string(ResolveCudaDefaults(config, kMachine, 15 * kGiB).status().message()),
              HasSubstr("--cache_bytes: got '15GiB'"));
  config.cache_bytes = 0;
  config.workspace_bytes = 8 * kGiB;
  EXPECT_THAT(std::string(ResolveCudaDefaults(config, kMachine, 15 * kGiB).status().message()),
              HasSubstr("--workspace_bytes: got '8GiB'"));
  config.workspace_bytes = 0;
  config.host_cache_bytes = kMachine.memory_bytes + 1;
  EXPECT_THAT(std::string(ResolveCudaDefaults(config, kMachine, 15 * kGiB).status().message()),
              HasSubstr("--host_cache_bytes: got"));
  config.host_cache_bytes = kMachine.memory_bytes;
  EXPECT_TRUE(ResolveCudaDefaults(config, kMachine, 15 * kGiB).ok());
}

TEST(CudaMemoryBudgetTest, AnOccupiedCardIsRefused) {
  EXPECT_EQ(ResolveCudaDefaults({}, kMachine, kGiB).status().code(),
            absl::StatusCode::kResourceExhausted)
      << "no wrong flag: it may be free later";
}

}  // namespace
}  // namespace attnd
