#include "kernels/bench/bench_measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "kernels/bench/bench_problem.h"
#include "kernels/bench/bench_rounds.h"
#include "kernels/naive_library.h"

namespace attnd::kernels::bench {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct FreeWorkspace {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Workspace = std::unique_ptr<std::byte, FreeWorkspace>;

Workspace AllocateWorkspace(std::int64_t bytes) {
  const std::int64_t padded = std::max<std::int64_t>(128, (bytes + 127) / 128 * 128);
  Workspace workspace(static_cast<std::byte*>(std::aligned_alloc(128, padded)));
  if (workspace == nullptr) throw std::runtime_error("no memory for the workspace");
  return workspace;
}

struct CeilingSamples {
  std::vector<double> fp32, bf16, read;

  void Add(const CpuCeilings& ceilings) {
    fp32.push_back(ceilings.fp32_flops_per_second);
    bf16.push_back(ceilings.bf16_flops_per_second);
    read.push_back(ceilings.read_bytes_per_second);
  }
  CpuCeilings Median() const {
    return {Summarise(fp32).ms, Summarise(bf16).ms, Summarise(read).ms};
  }
};

// A kernel ready to be launched on a problem.
struct Launchable {
  LaunchPlan plan;
  Workspace workspace;
};

LaunchResult LaunchChecked(const Launchable& kernel, BenchProblem& problem, CpuExecutor& executor,
                           double& error) {
  const LaunchResult result =
      Launch(kernel.plan, problem.params(), kernel.workspace.get(), executor);
  error = problem.Error();
  if (result.status != LaunchStatus::kOk || error > problem.Tolerance()) {
    std::ostringstream text;
    text << kernel.plan.row->name << ": status " << static_cast<int>(result.status) << ", error "
         << error << ", allowed " << problem.Tolerance();
    throw std::runtime_error(text.str());
  }
  return result;
}

Side SideOf(const Launchable& kernel, BenchProblem& problem, CpuExecutor& executor) {
  Side side;
  side.run = [&](int calls) {
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < calls; ++i) {
      Launch(kernel.plan, problem.params(), kernel.workspace.get(), executor);
    }
    return SecondsSince(begin);
  };
  return side;
}

const KernelRow* Find(Operation operation, const BenchCase& bench_case,
                      const AttentionParams& params, const DeviceLimits& limits) {
  const KernelKey key{operation, bench_case.data_type, bench_case.data_type, bench_case.head_dim,
                      RequiredFeatures(params)};
  return FindKernel(key, limits);
}

}  // namespace

Floor FloorOf(const KernelRow& row, DataType type, const KernelCost& cost,
              const CpuCeilings& ceilings) {
  // Naive's products are library calls that use the best instructions of the machine.
  const bool bf16 =
      type == DataType::kBf16 && ceilings.bf16_flops_per_second > 0 &&
      (row.operation == Operation::kNaive || row.cpu_target == CpuTarget::kAvx512Bf16);
  const double rate = bf16 ? ceilings.bf16_flops_per_second : ceilings.fp32_flops_per_second;
  const double compute_ms = cost.flops / rate * 1e3;
  const double memory_ms = cost.min_read_bytes / ceilings.read_bytes_per_second * 1e3;
  if (memory_ms > compute_ms) return {memory_ms, "memory_read"};
  return {compute_ms, bf16 ? "bf16_dot" : "fp32_fma"};
}

CaseResult MeasureCase(const BenchCase& bench_case, const DeviceLimits& limits,
                       CpuExecutor& executor, const CpuCeilings& ceilings,
                       const MeasureOptions& options, BenchPeer* peer) {
  if (const char* fault = NaiveFault(DeviceKind::kCpu)) throw std::runtime_error(fault);
  BenchProblem problem(bench_case);
  CaseResult result;
  result.bench_case = bench_case;
  result.row = Find(bench_case.operation, bench_case, problem.params(), limits);
  result.naive_row = Find(Operation::kNaive, bench_case, problem.params(), limits);
  if (result.row == nullptr || result.naive_row == nullptr) {
    throw std::runtime_error("no kernel serves " + bench_case.Name());
  }
  Launchable kernel{PlanAttention(*result.row, problem.params(), limits, PlanOptions()), nullptr};
  Launchable naive{PlanAttention(*result.naive_row, problem.params(), limits, PlanOptions()),
                   nullptr};
  result.cost = kernel.plan.cost;
  result.naive_cost = naive.plan.cost;
  result.workspace_bytes = kernel.plan.workspace_bytes;
  result.naive_workspace_bytes = naive.plan.workspace_bytes;

  std::vector<Side*> sides;
  kernel.workspace = AllocateWorkspace(kernel.plan.workspace_bytes);
  result.exact_reruns = LaunchChecked(kernel, problem, executor, result.error).exact_reruns;
  Side kernel_side = SideOf(kernel, problem, executor);
  sides.push_back(&kernel_side);
  Side naive_side = SideOf(naive, problem, executor);
  if (naive.plan.workspace_bytes <= options.max_naive_bytes) {
    naive.workspace = AllocateWorkspace(naive.plan.workspace_bytes);
    double error = 0;
    LaunchChecked(naive, problem, executor, error);
    sides.push_back(&naive_side);
  }
  Side peer_side;
  peer_side.run = [peer](int calls) { return peer->Run(calls); };
  if (peer != nullptr && peer->Prepare(bench_case)) {
    result.peer_name = peer->name();
    sides.push_back(&peer_side);
  }
  result.ceilings = ceilings;
  if (options.ceiling_seconds > 0) {
    CeilingSamples samples;
    RunRounds(sides, options, [&] {
      samples.Add(MeasureCpuCeilings(limits.cpu_target, executor, options.ceiling_seconds));
    });
    result.ceilings = samples.Median();
  } else {
    RunRounds(sides, options, nullptr);
  }
  result.floor = FloorOf(*result.row, bench_case.data_type, result.cost, result.ceilings);
  result.timing = Summarise(kernel_side.ms);
  if (!naive_side.ms.empty()) result.naive = Summarise(naive_side.ms);
  if (!peer_side.ms.empty()) result.peer = Summarise(peer_side.ms);
  return result;
}

}  // namespace attnd::kernels::bench
