#include "server/status_history.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace attnd {
namespace {

double SumOf(const std::map<std::string, double>& values) {
  double sum = 0;
  for (const auto& [name, value] : values) sum += value;
  return sum;
}

double ValueOr0(const std::map<std::string, double>& values, const std::string& name) {
  const auto found = values.find(name);
  return found == values.end() ? 0 : found->second;
}

bool SameKernel(const KernelTotals& one, const KernelTotals& other) {
  return one.kernel == other.kernel && one.device == other.device;
}

std::vector<KernelTotals> KernelsSince(const std::vector<KernelTotals>& now,
                                       const std::vector<KernelTotals>& before) {
  std::vector<KernelTotals> ran;
  for (KernelTotals kernel : now) {
    for (const KernelTotals& earlier : before) {
      if (!SameKernel(kernel, earlier)) continue;
      kernel.launches -= earlier.launches;
      kernel.busy_seconds -= earlier.busy_seconds;
      kernel.hbm_bytes -= earlier.hbm_bytes;
      kernel.flops -= earlier.flops;
    }
    if (kernel.launches > 0) ran.push_back(std::move(kernel));
  }
  return ran;
}

std::map<std::string, StatusSample::Latency> LatencySince(
    const std::map<std::string, Distribution>& now,
    const std::map<std::string, Distribution>& before) {
  std::map<std::string, StatusSample::Latency> latency;
  for (const auto& [method, distribution] : now) {
    const auto earlier = before.find(method);
    const Distribution difference =
        earlier == before.end() ? distribution : distribution.Since(earlier->second);
    if (difference.count() <= 0) continue;
    latency[method] = {difference.count(), difference.UpperBound(0.5), difference.UpperBound(0.99)};
  }
  return latency;
}

}  // namespace

void StatusHistory::Record(const StatusTotals& totals, Clock::TimePoint now, double unix_seconds) {
  const std::lock_guard lock(mutex_);
  if (has_last_) {
    StatusSample& sample = samples_.emplace_back();
    sample.unix_seconds = unix_seconds;
    sample.period_seconds = std::chrono::duration<double>(now - last_time_).count();
    sample.kernels = KernelsSince(totals.kernels, last_.kernels);
    sample.latency = LatencySince(totals.latency, last_.latency);
    sample.batch_sequences = totals.batch_sequences.Since(last_.batch_sequences);
    sample.answers = SumOf(totals.answers_by_code) - SumOf(last_.answers_by_code);
    sample.queue_depth = ValueOr0(totals.gauges, "queue_depth");
    sample.running_batches = ValueOr0(totals.gauges, "running_batches");
    sample.sequences = SumOf(totals.sequences_by_state);
    sample.cache_bytes_used = ValueOr0(totals.cache_bytes_by_state, "used");
    if (samples_.size() > kMaxSamples) samples_.pop_front();
  }
  last_ = totals;
  last_time_ = now;
  has_last_ = true;
}

std::vector<StatusSample> StatusHistory::Samples() const {
  const std::lock_guard lock(mutex_);
  return {samples_.begin(), samples_.end()};
}

std::vector<KernelWindow> LastKernelWindows(const std::vector<StatusSample>& samples) {
  std::vector<KernelWindow> windows;
  for (auto sample = samples.rbegin(); sample != samples.rend(); ++sample) {
    for (const KernelTotals& kernel : sample->kernels) {
      const auto found = std::find_if(
          windows.begin(), windows.end(),
          [&kernel](const KernelWindow& window) { return SameKernel(window.totals, kernel); });
      if (found == windows.end()) {
        windows.push_back({kernel, sample->unix_seconds});
        continue;
      }
      // The sample's start lies within the window: its end is the window's minus kWindow, and half
      // a period more so that samples that came a little late are not lost.
      const double age = found->last_unix_seconds - sample->unix_seconds + sample->period_seconds;
      const auto limit = std::chrono::duration<double>(KernelWindow::kWindow) +
                         std::chrono::duration<double>(StatusHistory::kPeriod) / 2;
      if (age > limit.count()) continue;
      found->totals.launches += kernel.launches;
      found->totals.busy_seconds += kernel.busy_seconds;
      found->totals.hbm_bytes += kernel.hbm_bytes;
      found->totals.flops += kernel.flops;
    }
  }
  std::sort(windows.begin(), windows.end(), [](const KernelWindow& one, const KernelWindow& other) {
    return std::tie(one.totals.kernel, one.totals.device) <
           std::tie(other.totals.kernel, other.totals.device);
  });
  return windows;
}

}  // namespace attnd
