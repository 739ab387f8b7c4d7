// What threads have freed goes back to the system, whatever arena it lies in.
#include "server/freed_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include "server/allocator_settings.h"

namespace attnd {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

std::int64_t ResidentBytes() {
  std::int64_t total_pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> total_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

// As gRPC receives: blocks of 64 KiB, taken and freed by a thread that lives on.
class BusyThreads {
 public:
  explicit BusyThreads(int count) {
    for (int i = 0; i < count; ++i) threads_.emplace_back([this] { TakeAndFree(); });
    while (done_ < count) std::this_thread::yield();
  }
  ~BusyThreads() {
    end_ = true;
    end_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void TakeAndFree() {
    constexpr std::size_t kBlocks = 160, kBlockBytes = 64 * 1024;
    std::vector<void*> blocks(kBlocks);
    for (void*& block : blocks) {
      block = std::malloc(kBlockBytes);
      std::memset(block, 1, kBlockBytes);
    }
    for (void* block : blocks) std::free(block);
    ++done_;
    end_.wait(false);
  }
  std::atomic<int> done_{0};
  std::atomic<bool> end_{false};
  std::vector<std::thread> threads_;
};

TEST(FreedMemoryTest, GoesBackFromEveryArena) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "freed blocks stay with a sanitizer";
#endif
  SetUpAllocator();
  const std::int64_t before = ResidentBytes();
  const BusyThreads threads(6);
  EXPECT_GT(ResidentBytes() - before, 20 * kMiB) << "the allocator keeps it";
  ReleaseFreedMemory();
  EXPECT_LT(ResidentBytes() - before, 3 * kMiB);
}

}  // namespace
}  // namespace attnd
