// Threads of the CPU kernels: the oneTBB arena behind CpuExecutor, and the one loop that every
// kernel runs in it. Included by kernel .cc files only, so that no caller of the library sees
// oneTBB.
#pragma once

#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>

#include <atomic>
#include <cstdint>

#include "kernels/attention_kernels.h"

namespace attnd::kernels {

struct CpuExecutor::Arena {
  // One slot is reserved for the thread that launches.
  explicit Arena(int num_threads) : tbb_arena(num_threads, 1) {}
  oneapi::tbb::task_arena tbb_arena;
};

// Calls run(item, worker) once for every item in [0, num_items) and returns when all are done.
// Items are handed out one at a time in ascending order, so a list sorted by falling cost is
// scheduled longest first. `worker` is in [0, executor.num_threads()) and belongs to one thread at
// a time: it indexes per-thread scratch. `run` must not throw.
template <class Run>
void ParallelFor(CpuExecutor& executor, std::int64_t num_items, Run run) {
  const int num_workers =
      static_cast<int>(num_items < executor.num_threads() ? num_items : executor.num_threads());
  if (num_workers <= 1) {
    for (std::int64_t item = 0; item < num_items; ++item) {
      run(item, 0);
    }
    return;
  }
  std::atomic<std::int64_t> next{0};
  const auto work = [&](int worker) {
    for (;;) {
      const std::int64_t item = next.fetch_add(1, std::memory_order_relaxed);
      if (item >= num_items) {
        return;
      }
      run(item, worker);
    }
  };
  executor.arena().tbb_arena.execute([&] {
    oneapi::tbb::parallel_for(
        oneapi::tbb::blocked_range<int>(0, num_workers, 1),
        [&](const oneapi::tbb::blocked_range<int>& workers) {
          for (int worker = workers.begin(); worker != workers.end(); ++worker) {
            work(worker);
          }
        },
        oneapi::tbb::simple_partitioner());
  });
}

}  // namespace attnd::kernels
