#include "server/status_report.h"

#include <cmath>
#include <cstddef>
#include <set>

#include "nlohmann/json.hpp"

namespace attnd {
namespace {

using Json = nlohmann::json;

// Batches of the last minute are shown beside those since the start.
constexpr double kRecentSeconds = 60;

Json Positive(double value) {
  return std::isfinite(value) && value >= 0 ? Json(value) : Json(nullptr);
}

Json FlagsJson(const StatusFacts& facts) {
  Json flags = Json::array();
  for (const StatusFacts::Flag& flag : facts.flags) {
    flags.push_back({{"name", flag.name},
                     {"group", flag.group},
                     {"value", flag.value},
                     {"default", flag.default_value}});
  }
  return flags;
}

Json CeilingsJson(const std::vector<Ceiling>& ceilings) {
  Json all = Json::array();
  for (const Ceiling& ceiling : ceilings) {
    all.push_back({{"family", ceiling.family},
                   {"labels", ceiling.labels},
                   {"value", ceiling.value},
                   {"unit", ceiling.family.ends_with("_flops_per_second") ? "FLOP/s" : "B/s"}});
  }
  return all;
}

Json TotalsJson(const KernelTotals& totals) {
  return {{"launches", totals.launches},
          {"busy_seconds", totals.busy_seconds},
          {"hbm_bytes", totals.hbm_bytes},
          {"flops", totals.flops}};
}

Json KernelsJson(const std::vector<KernelTotals>& totals,
                 const std::vector<StatusSample>& samples) {
  const std::vector<KernelWindow> windows = LastKernelWindows(samples);
  Json kernels = Json::array();
  for (const KernelTotals& kernel : totals) {
    Json entry = {{"kernel", kernel.kernel},
                  {"device", kernel.device},
                  {"total", TotalsJson(kernel)},
                  {"window", nullptr}};
    for (const KernelWindow& window : windows) {
      if (window.totals.kernel != kernel.kernel || window.totals.device != kernel.device) continue;
      entry["window"] = TotalsJson(window.totals);
      entry["window"]["last_unix_seconds"] = window.last_unix_seconds;
    }
    kernels.push_back(std::move(entry));
  }
  return kernels;
}

Json StagesJson(const std::map<std::string, Distribution>& stages) {
  Json all = Json::object();
  for (const auto& [stage, distribution] : stages) {
    all[stage] = {{"count", distribution.count()}, {"seconds", distribution.sum}};
  }
  return all;
}

Json BatchesJson(const StatusTotals& totals, const std::vector<StatusSample>& samples) {
  const Distribution& all = totals.batch_sequences;
  std::vector<double> recent(all.counts.size());
  double seconds = 0;
  for (auto sample = samples.rbegin(); sample != samples.rend() && seconds < kRecentSeconds;
       ++sample) {
    seconds += sample->period_seconds;
    const std::vector<double>& counts = sample->batch_sequences.counts;
    for (std::size_t i = 0; i < recent.size() && i < counts.size(); ++i) recent[i] += counts[i];
  }
  return {{"total", all.count()},
          {"mean_sequences", all.mean()},
          {"mean_tokens", totals.batch_tokens.mean()},
          {"sequences",
           {{"bounds", all.bounds},
            {"counts", all.counts},
            {"recent_counts", recent},
            {"recent_seconds", seconds}}}};
}

// Columns: entry i of every array belongs to times[i].
Json HistoryJson(const std::vector<StatusSample>& samples) {
  std::set<std::string> kernels;
  std::set<std::string> methods;
  for (const StatusSample& sample : samples) {
    for (const KernelTotals& kernel : sample.kernels) kernels.insert(kernel.kernel);
    for (const auto& [method, latency] : sample.latency) methods.insert(method);
  }
  Json history = {{"period_seconds", StatusHistory::kPeriod.count()}};
  for (const char* column : {"times", "answers_per_second", "queue_depth", "running_batches",
                             "sequences", "cache_bytes_used", "hbm_bytes_per_second"}) {
    history[column] = Json::array();
  }
  history["kernel_hbm_bytes_per_second"] = Json::object();
  history["latency_seconds"] = Json::object();
  for (const StatusSample& sample : samples) {
    const double period = sample.period_seconds > 0 ? sample.period_seconds : 1;
    double bytes = 0;
    for (const KernelTotals& kernel : sample.kernels) bytes += kernel.hbm_bytes;
    history["times"].push_back(sample.unix_seconds);
    history["answers_per_second"].push_back(sample.answers / period);
    history["queue_depth"].push_back(sample.queue_depth);
    history["running_batches"].push_back(sample.running_batches);
    history["sequences"].push_back(sample.sequences);
    history["cache_bytes_used"].push_back(sample.cache_bytes_used);
    history["hbm_bytes_per_second"].push_back(bytes / period);
    for (const std::string& name : kernels) {
      KernelTotals sum;
      for (const KernelTotals& kernel : sample.kernels) {
        if (kernel.kernel != name) continue;
        sum.hbm_bytes += kernel.hbm_bytes;
        sum.busy_seconds += kernel.busy_seconds;
      }
      history["kernel_hbm_bytes_per_second"][name].push_back(
          sum.busy_seconds > 0 ? Json(sum.hbm_bytes / sum.busy_seconds) : Json(nullptr));
    }
    for (const std::string& method : methods) {
      const auto found = sample.latency.find(method);
      const auto latency = found == sample.latency.end() ? StatusSample::Latency() : found->second;
      Json& columns = history["latency_seconds"][method];
      columns["p50"].push_back(Positive(latency.p50_seconds));
      columns["p99"].push_back(Positive(latency.p99_seconds));
    }
  }
  return history;
}

}  // namespace

std::string StatusJson(const StatusFacts& facts, const StatusState& state,
                       const StatusTotals& totals, const std::vector<StatusSample>& samples) {
  const Json document = {{"time", state.unix_seconds},
                         {"uptime_seconds", state.unix_seconds - facts.start_unix_seconds},
                         {"server",
                          {{"name", facts.server_name},
                           {"device", facts.device},
                           {"version", facts.build.version},
                           {"commit", facts.build.commit},
                           {"compiler", facts.build.compiler},
                           {"cpu_target", facts.build.cpu_target}}},
                         {"serving", state.serving},
                         {"reason", state.reason},
                         {"gauges", totals.gauges},
                         {"answers_by_code", totals.answers_by_code},
                         {"rejected_by_reason", totals.rejected_by_reason},
                         {"sequences_by_state", totals.sequences_by_state},
                         {"sequences_ended_by_reason", totals.ended_by_reason},
                         {"cache_bytes_by_state", totals.cache_bytes_by_state},
                         {"cache_pages_by_state", totals.cache_pages_by_state},
                         {"host_bytes_by_state", totals.host_bytes_by_state},
                         {"moved_bytes_by_direction", totals.moved_bytes_by_direction},
                         {"ceilings", CeilingsJson(totals.ceilings)},
                         {"kernel_window_seconds", KernelWindow::kWindow.count()},
                         {"kernels", KernelsJson(totals.kernels, samples)},
                         {"stages", StagesJson(totals.stages)},
                         {"batches", BatchesJson(totals, samples)},
                         {"history", HistoryJson(samples)},
                         {"flags", FlagsJson(facts)}};
  // Names and messages may hold bytes that are no UTF-8.
  return document.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace attnd
