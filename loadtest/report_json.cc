#include <array>
#include <string_view>

#include "absl/strings/str_join.h"
#include "client/file_bytes.h"
#include "client/tensor.h"
#include "loadtest/machine_info.h"
#include "loadtest/report.h"
#include "nlohmann/json.hpp"

namespace attnd::loadtest {
namespace {

using Json = nlohmann::json;

double Microseconds(LatencyRecorder::Duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

Json DurationsJson(const LatencyRecorder& recorder) {
  return {{"count", recorder.count()},
          {"min_us", Microseconds(recorder.min())},
          {"mean_us", Microseconds(recorder.mean())},
          {"p50_us", Microseconds(recorder.Percentile(0.5))},
          {"p75_us", Microseconds(recorder.Percentile(0.75))},
          {"p90_us", Microseconds(recorder.Percentile(0.9))},
          {"p95_us", Microseconds(recorder.Percentile(0.95))},
          {"p99_us", Microseconds(recorder.Percentile(0.99))},
          {"p99_9_us", Microseconds(recorder.Percentile(0.999))},
          {"max_us", Microseconds(recorder.max())}};
}

Json ShapeJson(const Scenario& scenario) {
  Json shape = {{"kind", scenario.kind == Kind::kAttend ? "attend" : "decode"},
                {"type", std::string(client::DataTypeName(scenario.data_type))},
                {"heads", scenario.heads},
                {"kv_heads", scenario.kv_heads},
                {"head_dim", scenario.head_dim},
                {"sequences", scenario.sequences},
                {"window", scenario.window},
                {"soft_cap", scenario.soft_cap},
                {"mode", scenario.mode == CallMode::kUnary ? "unary" : "stream"},
                {"connections", scenario.connections},
                {"workers", scenario.workers}};
  if (scenario.kind == Kind::kAttend) {
    shape["tokens"] = scenario.tokens;
    shape["kv_tokens"] = scenario.kv_tokens;
    shape["causal"] = scenario.causal;
    if (!scenario.capture.empty()) {
      shape["capture"] = scenario.capture;
      shape["prefix"] = scenario.prefix;
    }
  } else {
    shape["prompt"] = scenario.prompt;
    shape["steps"] = scenario.steps;
    shape["layers"] = scenario.layers;
    shape["step_tokens"] = scenario.step_tokens;
    shape["accepted"] = scenario.accepted;
  }
  return shape;
}

Json ResultJson(const RunResult& result) {
  Json json = {{"sent", result.sent},
               {"ok", result.ok},
               {"failed", result.failed()},
               {"failures", result.failures},
               {"skipped", result.skipped},
               {"warmup_sent", result.warmup_sent},
               {"measured_seconds", std::chrono::duration<double>(result.measured).count()},
               {"ok_requests_per_second", result.requests_per_second()},
               {"ok_tokens_per_second", result.tokens_per_second()},
               {"latency", DurationsJson(result.latency)},
               {"service_time", DurationsJson(result.service_time)},
               {"schedule_lag", DurationsJson(result.schedule_lag)},
               {"queue_time", DurationsJson(result.queue_time)},
               {"kernel_time", DurationsJson(result.kernel_time)},
               {"kernels", result.kernels},
               {"interrupted", result.interrupted},
               {"gave_up", result.gave_up}};
  if (result.ok > 0) {
    json["mean_batch_requests"] =
        static_cast<double>(result.batch_requests_sum) / static_cast<double>(result.ok);
  }
  json["warmup_seconds"] = std::chrono::duration<double>(result.warmup).count();
  if (result.settled) json["settled"] = *result.settled;
  if (!result.first_failure.empty()) json["first_failure"] = result.first_failure;
  return json;
}

Json SideJson(const Side& side) {
  const RunResult& run = side.run;
  Json json = {{"tokens_per_second", Median(side.block_rates)},
               {"block_tokens_per_second", side.block_rates},
               {"p50_us", Microseconds(run.latency.Percentile(0.5))},
               {"p99_us", Microseconds(run.latency.Percentile(0.99))},
               {"kernel_p50_us", Microseconds(run.kernel_time.Percentile(0.5))},
               {"kernel_p99_us", Microseconds(run.kernel_time.Percentile(0.99))},
               {"kernels", run.kernels},
               {"sent", run.sent},
               {"ok", run.ok},
               {"failures", run.failures}};
  if (run.ok > 0) {
    json["mean_batch_requests"] =
        static_cast<double>(run.batch_requests_sum) / static_cast<double>(run.ok);
  }
  return json;
}

Json IntervalJson(const Interval& interval) {
  return {{"median", interval.median}, {"low_95", interval.low}, {"high_95", interval.high}};
}

}  // namespace

Json RunJson(const RunReport& report) {
  Json json = {{"name", report.scenario.name},
               {"shape", ShapeJson(report.scenario)},
               {"loop", report.open_loop ? "open" : "closed"},
               {"slots", report.slots},
               {"processes", report.processes},
               {"result", ResultJson(report.result)}};
  if (report.open_loop) json["offered_requests_per_second"] = report.offered_rate;
  if (report.slo_ms) {
    const auto limit = std::chrono::duration_cast<LatencyRecorder::Duration>(
        std::chrono::duration<double, std::milli>(*report.slo_ms));
    const std::int64_t good = report.result.latency.CountUpTo(limit);
    json["slo_ms"] = *report.slo_ms;
    json["within_slo"] = good;
    json["within_slo_ratio"] =
        report.result.sent > 0 ? static_cast<double>(good) / static_cast<double>(report.result.sent)
                               : 0.0;
  }
  if (report.floor) json["floor"] = FloorJson(report.scenario, *report.floor);
  if (report.replay) {
    const ReplayReport& replay = *report.replay;
    // Lengths are the trace's.
    json["shape"].erase("prompt");
    json["shape"].erase("steps");
    json["replay"] = {{"trace", replay.trace},
                      {"speed", replay.scale.speed},
                      {"length_scale", replay.scale.lengths},
                      {"sessions", replay.sessions},
                      {"span_seconds", std::chrono::duration<double>(replay.span).count()},
                      {"prompt_tokens", replay.times.prompt_tokens},
                      {"forked_tokens", replay.times.forked_tokens},
                      {"first_token", DurationsJson(replay.times.first_token)},
                      {"step", DurationsJson(replay.times.step)},
                      {"calls", replay.calls}};
  }
  return json;
}

Json FloorJson(const Scenario& scenario, const FloorResult& floor) {
  return {{"name", scenario.name},
          {"shape", ShapeJson(scenario)},
          {"request_bytes", floor.request_bytes},
          {"reply_bytes", floor.reply_bytes},
          {"requests_per_second", floor.run.requests_per_second()},
          {"latency", DurationsJson(floor.run.latency)}};
}

Json ComparisonJson(const ScenarioComparison& comparison) {
  Json json = {{"name", comparison.scenario.name},
               {"shape", ShapeJson(comparison.scenario)},
               {"fused_tokens_per_second", Median(comparison.fused.block_rates)},
               {"naive_tokens_per_second", Median(comparison.naive.block_rates)},
               {"fused_over_naive", comparison.fused_over_naive.median},
               {"fused_over_naive_interval", IntervalJson(comparison.fused_over_naive)},
               {"blocks", comparison.fused.block_rates.size()},
               {"fused", SideJson(comparison.fused)},
               {"naive", SideJson(comparison.naive)},
               {"floor_p50_us", Microseconds(comparison.floor.run.latency.Percentile(0.5))},
               {"floor", FloorJson(comparison.scenario, comparison.floor)}};
  json["batching_on_over_off"] = nullptr;
  if (comparison.alone && comparison.batching_on_over_off) {
    json["batching_on_over_off"] = comparison.batching_on_over_off->median;
    json["batching_on_over_off_interval"] = IntervalJson(*comparison.batching_on_over_off);
    json["alone"] = SideJson(*comparison.alone);
  }
  if (comparison.naive_alone && comparison.naive_batching_on_over_off) {
    json["naive_batching_on_over_off_interval"] =
        IntervalJson(*comparison.naive_batching_on_over_off);
    json["naive_alone"] = SideJson(*comparison.naive_alone);
  }
  return json;
}

Json ReportHeader(const std::string& tool, const std::vector<std::string>& command,
                  const std::optional<v1::GetServerInfoResponse>& server) {
  const MachineInfo machine = ThisMachine();
  Json header = {{"tool", tool},
                 {"version", ATTND_VERSION},
                 {"date", DateNow()},
                 {"command", absl::StrJoin(command, " ")},
                 {"machine",
                  {{"cpu", machine.cpu_model},
                   {"cores", machine.cores},
                   {"memory_bytes", machine.memory_bytes},
                   {"kernel", machine.kernel}}}};
  if (!server) return header;
  Json devices = Json::array();
  for (const v1::Device& device : server->devices()) {
    devices.push_back(
        {{"name", device.name()},
         {"backend", device.backend()},
         {"kernel_arch", device.kernel_arch()},
         {"memory_bytes", device.memory_bytes()},
         {"measured_read_bytes_per_second", device.measured_read_bytes_per_second()}});
  }
  header["server"] = {{"name", server->server()},
                      {"version", server->version()},
                      {"commit", server->commit()},
                      {"devices", devices}};
  return header;
}

absl::Status WriteReport(const std::string& path, const Json& report) {
  // Server text (names, messages) may hold bytes that are no UTF-8.
  const std::string text = report.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  const std::array<std::string_view, 1> parts{text};
  return client::WriteFileBytes(path, parts);
}

}  // namespace attnd::loadtest
