#include "kernels/cpu/cpu_executor.h"

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>

namespace attnd::kernels {

struct CpuExecutor::Arena {
  explicit Arena(int num_threads) : arena(num_threads, 1) {}
  tbb::task_arena arena;
};

CpuExecutor::CpuExecutor(int num_threads)
    : num_threads_(num_threads < 1 ? 1 : num_threads), arena_(new Arena(num_threads_)) {}

CpuExecutor::~CpuExecutor() { delete arena_; }

void RunWorkers(CpuExecutor& executor, int num_workers, void (*task)(void* context, int worker),
                void* context) {
  executor.arena().arena.execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<int>(0, num_workers, 1),
        [&](const tbb::blocked_range<int>& workers) {
          for (int worker = workers.begin(); worker != workers.end(); ++worker) {
            task(context, worker);
          }
        },
        tbb::simple_partitioner());
  });
}

}  // namespace attnd::kernels
