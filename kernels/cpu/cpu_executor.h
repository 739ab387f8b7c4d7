// Parallel loops on the threads of a CpuExecutor. Used by every CPU kernel; oneTBB stays behind it.
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

#include "kernels/attention_kernels.h"

namespace attnd::kernels {

// Calls task(context, worker) once for each worker in [0, num_workers), possibly at the same time;
// the calling thread takes part, and the call returns when all have returned. When other threads
// are busy the calling thread runs several workers one after the other, so a worker must never wait
// for another one. task must not throw.
void RunWorkers(CpuExecutor& executor, int num_workers, void (*task)(void* context, int worker),
                void* context);

// Calls f(item) or f(item, worker) for every item in [0, num_items), items handed out one by one in
// ascending order to whichever thread is free. `worker` lies in [0, executor.num_threads()) and is
// never shared by two calls that run at the same time: it indexes per-worker scratch memory. With
// one item or one thread everything runs on the calling thread, without waking any other.
template <class F>
void ParallelFor(CpuExecutor& executor, std::int64_t num_items, F f) {
  constexpr bool kTakesWorker = std::is_invocable_v<F&, std::int64_t, int>;
  const auto call = [&f](std::int64_t item, int worker) {
    if constexpr (kTakesWorker) {
      f(item, worker);
    } else {
      f(item);
    }
  };
  if (num_items <= 1 || executor.num_threads() == 1) {
    for (std::int64_t item = 0; item < num_items; ++item) call(item, 0);
    return;
  }
  struct Loop {
    decltype(call)& body;
    std::int64_t num_items;
    std::atomic<std::int64_t> next{0};
  } loop{call, num_items};
  const auto num_workers = static_cast<int>(
      num_items < executor.num_threads() ? num_items : std::int64_t{executor.num_threads()});
  RunWorkers(
      executor, num_workers,
      [](void* context, int worker) {
        Loop& shared = *static_cast<Loop*>(context);
        for (;;) {
          const std::int64_t item = shared.next.fetch_add(1, std::memory_order_relaxed);
          if (item >= shared.num_items) return;
          shared.body(item, worker);
        }
      },
      &loop);
}

}  // namespace attnd::kernels
