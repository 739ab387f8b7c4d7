// What attnbench writes: a table for people, JSON lines for scripts/bench_tables.py.
#pragma once

#include <string>
#include <vector>

#include "kernels/attention_kernels.h"
#include "kernels/bench/bench_measure.h"

namespace attnd::kernels::bench {

struct RunInfo {
  std::string commit;
  std::string command;
  std::string device;  // the processor's own name
  std::string date;    // UTC, ISO 8601
  std::string cpu_target;
  int num_threads = 1;
  CpuCeilings ceilings;
};

// The processor's name and this moment.
std::string DeviceName();
std::string UtcNow();

// First line of a recorded file.
std::string RunLine(const RunInfo& run);
// One line a kernel: the case's own, and naive's where it was run.
std::vector<std::string> ResultLines(const CaseResult& result, const RunInfo& run);

std::string TableHeader();
std::string TableRow(const CaseResult& result);
std::string CeilingsText(const RunInfo& run);

}  // namespace attnd::kernels::bench
