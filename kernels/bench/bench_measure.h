// Timing of one case: our kernel, naive and the peer in alternating blocks of the same run, so that
// a busy machine cannot favour one of them; and the floor that the machine sets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/attention_kernels.h"
#include "kernels/bench/bench_case.h"
#include "kernels/bench/bench_peer.h"
#include "kernels/bench/bench_rounds.h"

namespace attnd::kernels::bench {

// The shortest time that the machine allows, and what sets it.
struct Floor {
  double ms = 0;
  const char* binding_unit = "";  // "fp32_fma", "bf16_dot" or "memory_read"
};
Floor FloorOf(const KernelRow& row, DataType type, const KernelCost& cost,
              const CpuCeilings& ceilings);

struct CaseResult {
  BenchCase bench_case;
  const KernelRow* row = nullptr;
  const KernelRow* naive_row = nullptr;
  KernelCost cost;
  KernelCost naive_cost;
  CpuCeilings ceilings;  // medians of this case's rounds
  Floor floor;
  Timing timing;
  std::optional<Timing> naive, peer;
  std::string peer_name;
  std::int64_t workspace_bytes = 0;
  std::int64_t naive_workspace_bytes = 0;
  std::int64_t exact_reruns = 0;
  double error = 0;
};

// Checks and times `row` on the case. Throws std::runtime_error where a result is wrong. peer: null
// where there is none.
CaseResult MeasureCase(const BenchCase& bench_case, const DeviceLimits& limits,
                       CpuExecutor& executor, const CpuCeilings& ceilings,
                       const MeasureOptions& options, BenchPeer* peer);

}  // namespace attnd::kernels::bench
