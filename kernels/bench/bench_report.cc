#include "kernels/bench/bench_report.h"

#include <array>
#include <cstdio>
#include <ctime>
#include <fstream>

#include "kernels/bench/bench_json.h"

namespace attnd::kernels::bench {
namespace {

double MinBytes(const KernelCost& cost) { return cost.min_read_bytes + cost.min_write_bytes; }

Json Line(const CaseResult& result, const KernelRow& row, const char* operation,
          const KernelCost& cost, const Timing& timing, const Floor& floor) {
  const BenchCase& c = result.bench_case;
  return {{"op", operation},
          {"kernel", row.name},
          {"device", nullptr},
          {"case", c.Name()},
          {"shape", ShapeJson(c)},
          {"dtype", TypeName(c.data_type)},
          {"ms", Rounded(timing.ms)},
          {"spread", Rounded(timing.spread)},
          {"tflops", Rounded(cost.flops / timing.ms / 1e9)},
          {"gbps", Rounded(MinBytes(cost) / timing.ms / 1e6)},
          {"floor_ms", Rounded(floor.ms)},
          {"fraction_of_floor", Rounded(floor.ms / timing.ms)},
          {"binding_unit", floor.binding_unit}};
}

std::string Ratio(const std::optional<Timing>& other, double ms) {
  std::array<char, 48> text{};
  if (other.has_value()) {
    std::snprintf(text.data(), text.size(), "%10.3f %5.2fx", other->ms, other->ms / ms);
  } else {
    std::snprintf(text.data(), text.size(), "%10s %6s", "-", "-");
  }
  return text.data();
}

}  // namespace

std::string DeviceName() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    if (line.rfind("model name", 0) != 0) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

std::string UtcNow() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text.data();
}

std::string RunLine(const RunInfo& run) {
  return Json{{"commit", run.commit},
              {"command", run.command},
              {"device", run.device},
              {"date", run.date},
              {"threads", run.num_threads},
              {"cpu_target", run.cpu_target},
              {"fp32_gflops", Rounded(run.ceilings.fp32_flops_per_second / 1e9)},
              {"bf16_gflops", Rounded(run.ceilings.bf16_flops_per_second / 1e9)},
              {"read_gbps", Rounded(run.ceilings.read_bytes_per_second / 1e9)}}
      .dump();
}

std::vector<std::string> ResultLines(const CaseResult& result, const RunInfo& run) {
  Json line = Line(result, *result.row, OperationName(result.bench_case.operation), result.cost,
                   result.timing, result.floor);
  line["device"] = run.device;
  line["fp32_gflops"] = Rounded(result.ceilings.fp32_flops_per_second / 1e9);
  line["bf16_gflops"] = Rounded(result.ceilings.bf16_flops_per_second / 1e9);
  line["read_gbps"] = Rounded(result.ceilings.read_bytes_per_second / 1e9);
  if (result.naive.has_value()) line["naive_ms"] = Rounded(result.naive->ms);
  if (result.peer.has_value()) {
    line["peer"] = result.peer_name;
    line["peer_ms"] = Rounded(result.peer->ms);
  }
  line["workspace_bytes"] = result.workspace_bytes;
  line["naive_workspace_bytes"] = result.naive_workspace_bytes;
  line["error"] = Rounded(result.error);
  line["exact_reruns"] = result.exact_reruns;
  std::vector<std::string> lines = {line.dump()};
  if (result.naive.has_value()) {
    const Floor floor =
        FloorOf(*result.naive_row, result.bench_case.data_type, result.naive_cost, result.ceilings);
    Json naive = Line(result, *result.naive_row, "naive", result.naive_cost, *result.naive, floor);
    naive["device"] = run.device;
    naive["workspace_bytes"] = result.naive_workspace_bytes;
    lines.push_back(naive.dump());
  }
  return lines;
}

std::string TableHeader() {
  std::array<char, 320> text{};
  std::snprintf(text.data(), text.size(),
                "%-53s %-24s %9s %8s %7s %9s %6s  %-11s %10s %6s %10s %6s %10s %10s", "case",
                "kernel", "ms", "TFLOP/s", "GB/s", "floor ms", "share", "bound by", "naive ms",
                "ratio", "peer ms", "ratio", "extra MiB", "naive MiB");
  return text.data();
}

std::string TableRow(const CaseResult& result) {
  std::array<char, 320> text{};
  const double ms = result.timing.ms;
  std::snprintf(text.data(), text.size(),
                "%-53s %-24s %9.3f %8.3f %7.1f %9.3f %5.1f%%  %-11s %s %s %10.2f %10.1f",
                result.bench_case.Name().c_str(), result.row->name, ms,
                result.cost.flops / ms / 1e9, MinBytes(result.cost) / ms / 1e6, result.floor.ms,
                100 * result.floor.ms / ms, result.floor.binding_unit,
                Ratio(result.naive, ms).c_str(), Ratio(result.peer, ms).c_str(),
                static_cast<double>(result.workspace_bytes) / (1 << 20),
                static_cast<double>(result.naive_workspace_bytes) / (1 << 20));
  return text.data();
}

std::string CeilingsText(const RunInfo& run) {
  std::array<char, 256> text{};
  std::snprintf(text.data(), text.size(),
                "%s, %d threads, target %s: FP32 FMA %.1f GFLOP/s, BF16 dot %.1f GFLOP/s, memory "
                "read %.1f GB/s",
                run.device.c_str(), run.num_threads, run.cpu_target.c_str(),
                run.ceilings.fp32_flops_per_second / 1e9, run.ceilings.bf16_flops_per_second / 1e9,
                run.ceilings.read_bytes_per_second / 1e9);
  return text.data();
}

}  // namespace attnd::kernels::bench
