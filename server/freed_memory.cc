#include "server/freed_memory.h"

#include <malloc.h>

#include <barrier>
#include <thread>
#include <vector>

#include "server/allocator_settings.h"

namespace attnd {
namespace {

// New threads are spread over the arenas; twice as many as there are arenas meet each one.
constexpr int kThreads = 2 * kMaxArenas;
// A block of that size is joined with the free memory around it when it is freed, and the arena
// then looks whether its end should go.
constexpr std::size_t kBlockBytes = 256 * 1024;
constexpr int kReleasingTrimThreshold = 128 * 1024;

// Where every thread has a block, each is in an arena of its own turn.
void FreeABlockInEveryArena() {
  std::barrier all_have_one(kThreads);
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&all_have_one] {
      void* volatile block = std::malloc(kBlockBytes);  // volatile: the pair must not be left out
      all_have_one.arrive_and_wait();
      std::free(block);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

void ReleaseFreedMemory() {
  mallopt(M_TRIM_THRESHOLD, kReleasingTrimThreshold);
  FreeABlockInEveryArena();
  mallopt(M_TRIM_THRESHOLD, kTrimThresholdBytes);
  malloc_trim(0);
}

}  // namespace attnd
