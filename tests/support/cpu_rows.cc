// The rows of this machine's processor under test.
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "tests/support/attention_problem.h"

namespace attnd {

std::vector<const kernels::KernelRow*> AttentionRows(const AttentionProblem& problem) {
  std::vector<const kernels::KernelRow*> rows;
  for (const kernels::KernelRow& row : kernels::KernelTable()) {
    if (row.launch != nullptr && row.device == kernels::DeviceKind::kCpu &&
        (row.data_types & kernels::TypeBit(problem.shape().type)) != 0 &&
        kernels::CpuTargetSupported(row.cpu_target)) {
      rows.push_back(&row);
    }
  }
  return rows;
}

kernels::LaunchResult LaunchRow(AttentionProblem& problem, const kernels::KernelRow& row,
                                const RunSettings& settings, kernels::LaunchPlan& plan) {
  kernels::DeviceLimits limits;
  limits.num_threads = settings.num_threads;
  plan = kernels::PlanAttention(row, problem.params(), limits, settings.plan);
  // Poisoned too: a kernel that reads scratch before it writes shows.
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  const std::int64_t bytes = (plan.workspace_bytes + 127) / 128 * 128;
  const std::unique_ptr<std::byte, Free> workspace(
      static_cast<std::byte*>(std::aligned_alloc(128, std::max<std::int64_t>(bytes, 128))));
  std::fill_n(workspace.get(), bytes, std::byte{0xFF});
  kernels::CpuExecutor executor(settings.num_threads);
  return kernels::Launch(plan, problem.params(), workspace.get(), executor);
}

}  // namespace attnd
