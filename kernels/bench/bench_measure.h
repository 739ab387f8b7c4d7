// Timing of one case: our kernel, naive and the peer in alternating blocks of the same run, so that
// a busy machine cannot favour one of them; and the floor that the machine sets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/attention_kernels.h"
#include "kernels/bench/bench_case.h"
#include "kernels/bench/bench_peer.h"

namespace attnd::kernels::bench {

struct MeasureOptions {
  double seconds = 3;  // of each case, about
  int min_rounds = 5;  // blocks of every side at least
  double block_seconds = 0.03;
  // The machine's ceilings are measured for so long in every round too, so that a drifting clock or
  // a busy neighbour moves both; 0: those of the start hold.
  double ceiling_seconds = 0;
  std::int64_t max_naive_bytes = std::int64_t{4} << 30;  // naive is not run above this workspace
};

// The shortest time that the machine allows, and what sets it.
struct Floor {
  double ms = 0;
  const char* binding_unit = "";  // "fp32_fma", "bf16_dot" or "memory_read"
};
Floor FloorOf(const KernelRow& row, DataType type, const KernelCost& cost,
              const CpuCeilings& ceilings);

struct Timing {
  double ms = 0;      // median over blocks
  double spread = 0;  // (third quartile - first) / median
};

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
