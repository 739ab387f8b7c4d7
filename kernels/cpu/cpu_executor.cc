#include "kernels/cpu/cpu_executor.h"

#include <tbb/blocked_range.h>
#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>

#include <optional>

namespace attnd::kernels {

struct CpuExecutor::Arena {
  explicit Arena(int num_threads) : arena(num_threads, 1) {
    // oneTBB starts no more workers than the machine has processors unless told so.
    if (num_threads > tbb::info::default_concurrency()) {
      more_workers.emplace(tbb::global_control::max_allowed_parallelism, num_threads);
    }
  }
  std::optional<tbb::global_control> more_workers;
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
