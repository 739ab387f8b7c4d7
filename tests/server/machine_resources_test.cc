#include "server/machine_resources.h"

#include <sys/resource.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace attnd {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kGiB = std::int64_t{1} << 30;

// A made-up /proc and /sys/fs/cgroup.
class MachineResourcesTest : public ::testing::Test {
 protected:
  MachineResourcesTest() { Write("/proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n"); }
  ~MachineResourcesTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  MachineResources Read(int affinity_cores = 8) const {
    return ReadMachineResources(affinity_cores, root_);
  }

  const std::string root_ = ::testing::TempDir() + "attnd_machine_" +
                            ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(MachineResourcesTest, WithoutCgroupsTheMachineIsTheLimit) {
  EXPECT_EQ(Read().memory_bytes, 16 * kGiB);
  EXPECT_EQ(Read().cores, 8);
}

TEST_F(MachineResourcesTest, ObeysTheLimitsOfAVersionTwoContainer) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "1073741824\n");
  Write("/sys/fs/cgroup/cpu.max", "250000 100000\n");
  EXPECT_EQ(Read().memory_bytes, kGiB);
  EXPECT_EQ(Read().cores, 2);
  EXPECT_EQ(Read(1).cores, 1);
}

TEST_F(MachineResourcesTest, MaxMeansNoLimit) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "max\n");
  Write("/sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(Read().memory_bytes, 16 * kGiB);
  EXPECT_EQ(Read().cores, 8);
}

TEST_F(MachineResourcesTest, TheTightestEnclosingGroupBinds) {
  Write("/proc/self/cgroup", "0::/system.slice/attnd.service\n");
  Write("/sys/fs/cgroup/system.slice/memory.max", "2147483648\n");
  Write("/sys/fs/cgroup/system.slice/attnd.service/memory.max", "4294967296\n");
  Write("/sys/fs/cgroup/system.slice/attnd.service/cpu.max", "300000 100000\n");
  EXPECT_EQ(Read().memory_bytes, 2 * kGiB);
  EXPECT_EQ(Read().cores, 3);
}

TEST_F(MachineResourcesTest, ObeysTheLimitsOfAVersionOneContainer) {
  Write("/proc/self/cgroup", "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Read().memory_bytes, 512 * kMiB);
  EXPECT_EQ(Read().cores, 4);
}

TEST_F(MachineResourcesTest, AVersionOneQuotaOfMinusOneIsNone) {
  Write("/proc/self/cgroup", "3:cpu:/\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Read().cores, 8);
}

TEST_F(MachineResourcesTest, AQuotaBelowOneCoreIsOneThread) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(Read().cores, 1);
}

TEST_F(MachineResourcesTest, GarbageDoesNotBind) {
  Write("/proc/self/cgroup", "garbage\n0::/\n");
  Write("/sys/fs/cgroup/memory.max", "a lot\n");
  Write("/sys/fs/cgroup/cpu.max", "\n");
  EXPECT_EQ(Read().memory_bytes, 16 * kGiB);
  EXPECT_EQ(Read().cores, 8);
}

TEST(ReadMachineResourcesTest, FindsThisMachine) {
  const MachineResources resources = ReadMachineResources();
  EXPECT_GT(resources.memory_bytes, 64 * kMiB);
  EXPECT_LT(resources.memory_bytes, std::int64_t{1} << 50);
  EXPECT_GE(resources.cores, 1);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(resources.max_open_files, static_cast<std::int64_t>(limit.rlim_cur));
}

TEST(ResolveDefaultsTest, TakesAQuarterOfTheMemoryUpToTheCap) {
  const auto small = ResolveDefaults({}, {8 * kGiB, 6});
  ASSERT_TRUE(small.ok());
  EXPECT_EQ(small->cache_bytes, 2 * kGiB);
  EXPECT_EQ(small->workspace_bytes, 2 * kGiB);
  EXPECT_EQ(small->threads, 6);
  const auto large = ResolveDefaults({}, {512 * kGiB, 64});
  EXPECT_EQ(large->cache_bytes, 4 * kGiB);
  EXPECT_EQ(large->workspace_bytes, 128 * kGiB);
}

TEST(ResolveDefaultsTest, CacheIsAWholeNumberOfSlabs) {
  EXPECT_EQ(ResolveDefaults({}, {kGiB + 13 * kMiB, 1})->cache_bytes % (2 * kMiB), 0);
  EXPECT_EQ(ResolveDefaults({}, {4 * kMiB, 1})->cache_bytes, 2 * kMiB);
}

TEST(ResolveDefaultsTest, StreamsOfAConnectionFollowTheQueue) {
  ServerConfig config;
  const auto streams = [&config](int queue) {
    config.max_queue_requests = queue;
    return ResolveDefaults(config, {kGiB, 1})->max_concurrent_streams;
  };
  EXPECT_EQ(streams(4096), 4096);
  EXPECT_EQ(streams(10'000'000), 4096);
  EXPECT_EQ(streams(64), 96);
  EXPECT_EQ(streams(1), 16);
  config.max_concurrent_streams = 7;
  EXPECT_EQ(streams(64), 7);
}

TEST(ResolveDefaultsTest, KeepsExplicitValues) {
  ServerConfig config;
  config.cache_bytes = 64 * kMiB;
  config.workspace_bytes = 32 * kMiB;
  config.threads = 3;
  const auto resolved = ResolveDefaults(config, {kGiB, 8});
  ASSERT_TRUE(resolved.ok());
  EXPECT_EQ(resolved->cache_bytes, 64 * kMiB);
  EXPECT_EQ(resolved->workspace_bytes, 32 * kMiB);
  EXPECT_EQ(resolved->threads, 3);
}

TEST(ResolveDefaultsTest, RefusesMoreMemoryThanThereIs) {
  ServerConfig config;
  config.cache_bytes = 8 * kGiB;
  const auto resolved = ResolveDefaults(config, {4 * kGiB, 8});
  ASSERT_FALSE(resolved.ok());
  EXPECT_EQ(resolved.status().message(),
            "--cache_bytes: got '8GiB', need at most 4GiB, the memory that this process may use");
  config = {};
  config.workspace_bytes = 8 * kGiB;
  EXPECT_FALSE(ResolveDefaults(config, {4 * kGiB, 8}).ok());
}

TEST(ResolveDefaultsTest, ConnectionsAreWhatTheLimitOfOpenFilesLeaves) {
  const auto connections = [](std::int64_t max_open_files) {
    return ResolveDefaults({}, {kGiB, 1, max_open_files})->max_connections;
  };
  EXPECT_EQ(connections(64), 16);
  EXPECT_EQ(connections(128), 32);
  EXPECT_EQ(connections(1024), 928);
  EXPECT_EQ(connections(1 << 20), 16'384);
  EXPECT_EQ(connections(std::numeric_limits<std::int64_t>::max()), 16'384);
  ServerConfig config;
  config.max_connections = 928;
  EXPECT_EQ(ResolveDefaults(config, {kGiB, 1, 1024})->max_connections, 928);
  config.max_connections = 929;
  const auto resolved = ResolveDefaults(config, {kGiB, 1, 1024});
  ASSERT_FALSE(resolved.ok());
  EXPECT_EQ(resolved.status().message(),
            "--max_connections: got '929', need at most 928, what the limit of 1024 open files "
            "(ulimit -n) leaves for connections");
}

}  // namespace
}  // namespace attnd
