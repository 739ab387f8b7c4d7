#include "loadtest/run_result.h"

namespace attnd::loadtest {
namespace {

double PerSecond(std::int64_t count, RunResult::Duration time) {
  const double seconds = std::chrono::duration<double>(time).count();
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

}  // namespace

std::int64_t RunResult::failed() const {
  std::int64_t count = 0;
  for (const auto& [code, failed_count] : failures) count += failed_count;
  return count;
}

double RunResult::failure_ratio() const {
  return sent > 0 ? static_cast<double>(failed()) / static_cast<double>(sent) : 0;
}

double RunResult::tokens_per_second() const { return PerSecond(tokens, measured); }
double RunResult::requests_per_second() const { return PerSecond(ok, measured); }

void RunResult::Merge(const RunResult& other) {
  sent += other.sent;
  ok += other.ok;
  for (const auto& [code, count] : other.failures) failures[code] += count;
  skipped += other.skipped;
  warmup_sent += other.warmup_sent;
  tokens += other.tokens;
  measured += other.measured;
  latency.Merge(other.latency);
  service_time.Merge(other.service_time);
  schedule_lag.Merge(other.schedule_lag);
  kernel_time.Merge(other.kernel_time);
  queue_time.Merge(other.queue_time);
  batch_requests_sum += other.batch_requests_sum;
  kernels.insert(other.kernels.begin(), other.kernels.end());
  interrupted = interrupted || other.interrupted;
  gave_up = gave_up || other.gave_up;
  if (first_failure.empty()) first_failure = other.first_failure;
}

}  // namespace attnd::loadtest
