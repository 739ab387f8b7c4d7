#include "server/spare_poller.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>

namespace attnd {
namespace {

using std::chrono::steady_clock;

// Short: a call that finds the one thread that polls at work waits no longer than this for another.
constexpr std::chrono::milliseconds kMoment{2};
// The stream whose reaction a thread rests in is not let go before: it must not wait for the end of
// other streams' work. Whoever comes back meets the other thread soon enough.
constexpr int kMostMoments = 50;
// In a moment: 8,000 a second are 4,000 steps, below which the switches cost little.
constexpr std::int64_t kBusyReactions = 16;
// Moments over which the processors are judged.
constexpr int kMomentsJudged = 10;
constexpr double kOneThread = 0.9;      // of a processor: a thread that does nothing but work
constexpr double kFreeProcessor = 0.5;  // on average
// How long threads do not rest after they were found to be worth a processor.
constexpr std::chrono::milliseconds kApart{200};

double ProcessSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// 1e9 where it is not told.
double RunnableThreads() {
  std::FILE* file = std::fopen("/proc/loadavg", "re");
  if (file == nullptr) return 1e9;
  int running = 0;
  const int read = std::fscanf(file, "%*f %*f %*f %d/", &running);
  std::fclose(file);
  return read == 1 ? running - 1 : 1e9;
}

std::int64_t NowNanoseconds() {
  return std::chrono::nanoseconds(steady_clock::now().time_since_epoch()).count();
}

}  // namespace

int SparePoller::NumPollers() {
  const auto processors = static_cast<int>(sysconf(_SC_NPROCESSORS_CONF));
  return std::clamp(processors / 2, 2, 16);
}

SparePoller::Load SparePoller::CurrentLoad() {
  return {ProcessSeconds(), RunnableThreads(),
          static_cast<double>(std::thread::hardware_concurrency())};
}

SparePoller::SparePoller(int num_pollers, std::function<Load()> load)
    : most_resting_(num_pollers - 1), load_(std::move(load)) {}

void SparePoller::Enter() {
  inside_.fetch_add(1, std::memory_order_relaxed);
  reactions_.fetch_add(1, std::memory_order_relaxed);
}

void SparePoller::Leave() {
  if (inside_.fetch_sub(1, std::memory_order_relaxed) > 1) Rest();
}

void SparePoller::Rest() {
  if (NowNanoseconds() < not_before_ns_) return;
  int resting = resting_;
  do {
    if (resting >= most_resting_) return;
  } while (!resting_.compare_exchange_weak(resting, resting + 1));
  RestWhileBusy();
  --resting_;
}

void SparePoller::RestWhileBusy() {
  std::int64_t reactions = reactions_;
  double process_seconds = load_().process_seconds;
  std::int64_t judged_ns = NowNanoseconds();
  double runnable = 0;
  for (int moment = 1; moment <= kMostMoments; ++moment) {
    std::this_thread::sleep_for(kMoment);
    const std::int64_t reactions_now = reactions_;
    if (reactions_now - reactions < kBusyReactions) return;
    reactions = reactions_now;
    const Load load = load_();
    runnable += load.runnable;
    if (moment % kMomentsJudged != 0) continue;
    const std::int64_t now_ns = NowNanoseconds();
    const double seconds = static_cast<double>(now_ns - judged_ns) * 1e-9;
    const bool whole_thread = load.process_seconds - process_seconds > kOneThread * seconds;
    const bool free = runnable / kMomentsJudged < load.processors - kFreeProcessor;
    if (whole_thread && free) {
      not_before_ns_ = now_ns + std::chrono::nanoseconds(kApart).count();
      return;
    }
    process_seconds = load.process_seconds;
    judged_ns = now_ns;
    runnable = 0;
  }
}

}  // namespace attnd
