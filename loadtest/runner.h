// Runs a workload in a closed loop (each slot sends its next operation when the last one ended) or
// an open loop (operations are due by an arrival process, whatever the server does; latency counts
// from the time at which an operation was due, so that a stall cannot hide).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <queue>
#include <utility>
#include <vector>

#include "client/time_source.h"
#include "loadtest/arrival_process.h"
#include "loadtest/run_result.h"
#include "loadtest/workload.h"

namespace attnd::loadtest {

struct Progress {
  double done = 0;  // 0 to 1
  std::int64_t ok = 0, failed = 0, in_flight = 0;
};

struct RunOptions {
  using Duration = std::chrono::nanoseconds;
  int slots = 1;                       // closed loop: workers; open loop: most in flight
  ArrivalProcess* arrivals = nullptr;  // open loop; null: closed loop
  // Thousands of arrivals a second: the run's own thread keeps a processor awake that nobody else
  // uses, and sleeps a moment where somebody does. A processor that sleeps between two requests
  // wakes later than a request takes. Real time only.
  bool yield_when_dense = false;
  Duration warmup{0};
  // Above 0: after `warmup` the measured time begins when the answers of the last kSettleSlices
  // slices differ by at most so much of their mean, after settle_limit in any case.
  double settle_tolerance = 0;
  Duration settle_limit = std::chrono::seconds(30);
  Duration duration = std::chrono::seconds(10);  // after the warm-up
  std::int64_t max_requests = 0;                 // ends the run too; 0: no limit
  std::int64_t min_requests = 0;  // the run goes on past `duration` until so many ended
  Duration timeout = std::chrono::seconds(30);  // of one operation
  Duration give_up =
      std::chrono::seconds(5);  // end when only failures, three or more, came for so long
  Duration grace = std::chrono::seconds(2);  // for what is in flight at an interrupt or give-up
  // Polled by the run, many times a second.
  const std::atomic<bool>* interrupt = nullptr;
  std::function<void(const Progress&)> on_progress;
};

inline constexpr std::size_t kSettleSlices = 4;
inline constexpr std::chrono::milliseconds kSettleSlice{500};

// One run; Run is called once. The workload is prepared for options.slots.
class Runner {
 public:
  Runner(RunOptions options, Workload& workload, std::shared_ptr<client::TimeSource> time);

  // Blocks until everything sent has ended and every thread of the workload has left the run.
  RunResult Run();

 private:
  using TimePoint = client::TimePoint;
  using Duration = client::Duration;

  // These need mutex_.
  bool MayIssue(TimePoint now) const;
  bool ShouldStop(TimePoint now);
  TimePoint NextWake(TimePoint now) const;
  // Arrivals come faster than a thread should wake.
  bool Dense() const;
  void YieldUntil(std::unique_lock<std::mutex>& lock, TimePoint until);
  void StartDue(std::unique_lock<std::mutex>& lock);
  // The same from a thread that brings an answer.
  void StartDueHere(std::unique_lock<std::mutex>& lock);
  void BeginMeasuring(TimePoint now);
  void Settle(TimePoint now);
  void ReportProgress(TimePoint now);
  void Drain(std::unique_lock<std::mutex>& lock);
  void Count(TimePoint intended, TimePoint started, TimePoint ended, const OperationResult& result);
  bool Measured(TimePoint intended) const { return intended >= measure_from_; }

  // Sends in `slot`, which is taken. Releases `lock` meanwhile.
  void StartSlot(std::unique_lock<std::mutex>& lock, int slot, TimePoint intended);
  void OnDone(int slot, TimePoint intended, TimePoint started, OperationResult result);

  const RunOptions options_;
  Workload& workload_;
  const std::shared_ptr<client::TimeSource> time_;

  std::mutex mutex_;
  std::condition_variable changed_;
  RunResult result_;
  TimePoint start_{}, measure_from_{}, end_{}, last_ok_{}, last_answer_{}, next_due_{};
  TimePoint next_progress_{};
  std::vector<int> free_slots_;
  // Slots that rest after a failure, by the time at which they go on (closed loop).
  std::priority_queue<std::pair<TimePoint, int>, std::vector<std::pair<TimePoint, int>>,
                      std::greater<>>
      resting_;
  std::vector<int> failures_in_a_row_;
  std::int64_t issued_ = 0, ended_ = 0, failures_since_ok_ = 0;
  std::int64_t num_due_ = 1;  // arrivals up to next_due_
  // While it settles: answers of the slice under way, and the rates of those before.
  bool settling_ = false;
  TimePoint slice_start_{};
  std::int64_t slice_ok_ = 0;
  std::vector<double> slice_rates_;
  int starting_ = 0;  // threads inside Workload::Start
  bool issuing_ = false;
};

}  // namespace attnd::loadtest
