#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/tensor.h"
#include "loadtest/report.h"

namespace attnd::loadtest {
namespace {

double Microseconds(LatencyRecorder::Duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

// Three digits and a unit: "83.1 us", "1.25 ms", "2.00 s".
std::string TimeText(LatencyRecorder::Duration duration) {
  const double us = Microseconds(duration);
  if (us < 1000) return absl::StrFormat("%.1f us", us);
  if (us < 1e6) return absl::StrFormat("%.2f ms", us / 1e3);
  return absl::StrFormat("%.2f s", us / 1e6);
}

std::string RateText(double rate) {
  if (rate >= 1e6) return absl::StrFormat("%.2f M", rate / 1e6);
  if (rate >= 1e4) return absl::StrFormat("%.1f k", rate / 1e3);
  return absl::StrFormat("%.1f", rate);
}

std::string ShapeText(const Scenario& scenario) {
  const std::string heads =
      absl::StrFormat("%d/%d heads x %d, %s", scenario.heads, scenario.kv_heads, scenario.head_dim,
                      std::string(client::DataTypeName(scenario.data_type)));
  if (scenario.kind == Kind::kAttend) {
    return absl::StrFormat("attend %d x %d queries, %d keys, %s%s", scenario.sequences,
                           scenario.tokens, scenario.kv_tokens, heads,
                           scenario.causal ? ", causal" : "");
  }
  return absl::StrFormat("decode %d sequences a request, %d cached tokens, %s, %s",
                         scenario.sequences, scenario.prompt, heads,
                         scenario.mode == CallMode::kUnary ? "unary" : "stream");
}

std::string PercentileRow(const char* name, const LatencyRecorder& recorder) {
  return absl::StrFormat("  %-14s %11s %11s %11s %11s %11s %11s\n", name,
                         TimeText(recorder.Percentile(0.5)), TimeText(recorder.Percentile(0.9)),
                         TimeText(recorder.Percentile(0.99)), TimeText(recorder.Percentile(0.999)),
                         TimeText(recorder.max()), TimeText(recorder.mean()));
}

std::string PercentileHead() {
  return absl::StrFormat("  %-14s %11s %11s %11s %11s %11s %11s\n", "", "p50", "p90", "p99",
                         "p99.9", "max", "mean");
}

std::string CountsText(const RunReport& report) {
  const RunResult& result = report.result;
  std::string text =
      absl::StrFormat("  sent %d = OK %d + failed %d", result.sent, result.ok, result.failed());
  if (report.open_loop) absl::StrAppend(&text, ", skipped ", result.skipped);
  if (result.warmup_sent > 0) {
    absl::StrAppend(&text, " (and ", result.warmup_sent, " in the warm-up)");
  }
  text += "\n";
  for (const auto& [code, count] : result.failures) {
    absl::StrAppendFormat(&text, "    %-40s %d\n", code, count);
  }
  if (!result.first_failure.empty()) {
    absl::StrAppend(&text, "    first: ", result.first_failure, "\n");
  }
  return text;
}

std::string HeadText(const RunReport& report) {
  const Scenario& scenario = report.scenario;
  if (report.replay) {
    return absl::StrFormat(
        "%s: %d sessions over %.1f s, %d/%d heads x %d, %s, %d layers, at most %d in flight\n",
        report.replay->trace, report.replay->sessions,
        std::chrono::duration<double>(report.replay->span).count(), scenario.heads,
        scenario.kv_heads, scenario.head_dim, std::string(client::DataTypeName(scenario.data_type)),
        scenario.layers, report.slots);
  }
  std::string text = absl::StrFormat("%s: %s\n", scenario.name, ShapeText(scenario));
  if (report.open_loop) {
    absl::StrAppendFormat(&text, "  open loop, %.1f requests/s offered, at most %d in flight\n",
                          report.offered_rate, report.slots);
  } else {
    absl::StrAppendFormat(&text, "  closed loop, %d workers\n", report.slots);
  }
  if (report.processes > 1) {
    absl::StrAppendFormat(&text, "  by %d processes\n", report.processes);
  }
  return text;
}

}  // namespace

std::string RunTable(const RunReport& report) {
  const RunResult& result = report.result;
  std::string text = HeadText(report);
  if (result.interrupted) text += "  INTERRUPTED: a partial report\n";
  if (result.gave_up) text += "  GAVE UP: nothing but failures\n";
  if (result.settled && !*result.settled) text += "  NOT STEADY: the rate went on changing\n";
  text += CountsText(report);
  absl::StrAppendFormat(&text, "  OK only: %s requests/s, %s tokens/s over %.2f s\n",
                        RateText(result.requests_per_second()),
                        RateText(result.tokens_per_second()),
                        std::chrono::duration<double>(result.measured).count());
  if (report.slo_ms) {
    const auto limit = std::chrono::duration_cast<LatencyRecorder::Duration>(
        std::chrono::duration<double, std::milli>(*report.slo_ms));
    const std::int64_t good = result.latency.CountUpTo(limit);
    absl::StrAppendFormat(&text, "  within %.3g ms: %d of %d sent\n", *report.slo_ms, good,
                          result.sent);
  }
  text += PercentileHead();
  text += PercentileRow("latency", result.latency);
  if (report.open_loop) {
    text += PercentileRow("service time", result.service_time);
    text += PercentileRow("schedule lag", result.schedule_lag);
  }
  text += PercentileRow("queue", result.queue_time);
  text += PercentileRow("kernel", result.kernel_time);
  if (report.replay) {
    const SessionTimes& times = report.replay->times;
    if (times.forked_tokens > 0) {
      absl::StrAppendFormat(&text, "  forked %d of %d prompt tokens from earlier sessions\n",
                            times.forked_tokens, times.prompt_tokens);
    }
    text += PercentileRow("first token", report.replay->times.first_token);
    text += PercentileRow("each step", report.replay->times.step);
  }
  if (report.floor) text += PercentileRow("floor (echo)", report.floor->run.latency);
  if (!result.kernels.empty()) {
    absl::StrAppend(&text, "  kernels: ", absl::StrJoin(result.kernels, ", "), "\n");
  }
  return text;
}

std::string FloorTable(const Scenario& scenario, const FloorResult& floor) {
  return absl::StrFormat("%s: %s\n  echo of %d bytes in, %d bytes out, %d in flight: %s calls/s\n",
                         scenario.name, ShapeText(scenario), floor.request_bytes, floor.reply_bytes,
                         scenario.workers, RateText(floor.run.requests_per_second())) +
         PercentileHead() + PercentileRow("echo", floor.run.latency);
}

std::string ComparisonTable(const std::vector<ScenarioComparison>& comparisons) {
  std::size_t width = 8;
  for (const auto& comparison : comparisons) {
    width = std::max(width, comparison.scenario.name.size());
  }
  const int name_width = static_cast<int>(width);
  std::string text =
      absl::StrFormat("%-*s  %10s  %10s  %-20s  %10s  %10s  %10s  %10s  %10s  %-20s\n", name_width,
                      "scenario", "fused", "naive", "fused/naive [95 %]", "fused p50", "fused p99",
                      "naive p50", "kernel p50", "floor p50", "batching [95 %]");
  absl::StrAppendFormat(&text, "%-*s  %10s  %10s\n", name_width, "", "tokens/s", "tokens/s");
  for (const auto& comparison : comparisons) {
    const Interval& ratio = comparison.fused_over_naive;
    std::string batching = "-";
    if (comparison.batching_on_over_off) {
      const Interval& on_off = *comparison.batching_on_over_off;
      batching = absl::StrFormat("%.2fx [%.2f, %.2f]", on_off.median, on_off.low, on_off.high);
    }
    const RunResult& fused = comparison.fused.run;
    absl::StrAppendFormat(
        &text, "%-*s  %10s  %10s  %-20s  %10s  %10s  %10s  %10s  %10s  %-20s\n", name_width,
        comparison.scenario.name, RateText(Median(comparison.fused.block_rates)),
        RateText(Median(comparison.naive.block_rates)),
        absl::StrFormat("%.2fx [%.2f, %.2f]", ratio.median, ratio.low, ratio.high),
        TimeText(fused.latency.Percentile(0.5)), TimeText(fused.latency.Percentile(0.99)),
        TimeText(comparison.naive.run.latency.Percentile(0.5)),
        TimeText(fused.kernel_time.Percentile(0.5)),
        TimeText(comparison.floor.run.latency.Percentile(0.5)), batching);
  }
  return text;
}

}  // namespace attnd::loadtest
