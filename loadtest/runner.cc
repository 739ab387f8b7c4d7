#include "loadtest/runner.h"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "client/call_error.h"

namespace attnd::loadtest {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr auto kPoll = milliseconds(50);
constexpr auto kProgressInterval = milliseconds(250);
// A slot rests after a failure, so that a closed loop does not spin on a server that refuses at
// once.
constexpr auto kFirstRest = milliseconds(5);
constexpr auto kLongestRest = milliseconds(500);
// Arrivals denser than kDenseGap on average: waking for each of them would take the processor from
// the requests themselves. The run's own thread then sleeps at least kLeastSleep, and what falls
// due meanwhile is started by the threads that bring answers; or it keeps a free processor awake.
constexpr auto kDenseGap = microseconds(200);
constexpr auto kLeastSleep = microseconds(100);
// A yield that lasts as long has let another thread work; one that finds none takes less than 1 us.
constexpr auto kOthersRan = microseconds(5);
// One failure and a long operation after it are no lost server.
constexpr int kFailuresToGiveUp = 3;

// Linux wakes a sleeping thread up to 50 us late, unless told otherwise: as much as a short
// request takes.
class ExactWakes {
 public:
  ExactWakes() : before_(prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0)) { Set(kSlackNs); }
  ~ExactWakes() {
    if (before_ > 0) Set(static_cast<unsigned long>(before_));
  }
  ExactWakes(const ExactWakes&) = delete;
  ExactWakes& operator=(const ExactWakes&) = delete;

 private:
  static constexpr unsigned long kSlackNs = 1000;
  static void Set(unsigned long nanoseconds) { prctl(PR_SET_TIMERSLACK, nanoseconds, 0, 0, 0); }
  const int before_;
};

}  // namespace

Runner::Runner(RunOptions options, Workload& workload, std::shared_ptr<client::TimeSource> time)
    : options_(std::move(options)), workload_(workload), time_(std::move(time)) {
  failures_in_a_row_.resize(static_cast<std::size_t>(options_.slots));
  for (int slot = options_.slots - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

RunResult Runner::Run() {
  const ExactWakes exact;
  std::unique_lock<std::mutex> lock(mutex_);
  start_ = last_ok_ = last_answer_ = time_->Now();
  settling_ = options_.settle_tolerance > 0;
  slice_start_ = start_;
  if (settling_) {
    measure_from_ = end_ = client::TimeSource::kNever;
  } else {
    BeginMeasuring(start_ + options_.warmup);
  }
  next_progress_ = start_;
  if (options_.arrivals != nullptr) next_due_ = start_ + options_.arrivals->Next();
  issuing_ = true;
  while (!ShouldStop(time_->Now())) {
    StartDue(lock);
    const TimePoint now = time_->Now();
    if (settling_) Settle(now);
    ReportProgress(now);
    if (options_.yield_when_dense && Dense()) {
      YieldUntil(lock, std::min(NextWake(now), now + kLeastSleep));
    } else {
      time_->WaitUntil(lock, changed_, NextWake(now));
    }
  }
  // This thread may have slept past the end: what fell due before it is still owed.
  const bool cut_short = result_.interrupted || result_.gave_up;
  if (options_.arrivals != nullptr && !cut_short) StartDue(lock);
  issuing_ = false;
  Drain(lock);
  const TimePoint window_end = std::max(measure_from_, std::min(time_->Now(), end_));
  const TimePoint measured_to =
      options_.arrivals != nullptr ? std::max(window_end, last_answer_) : last_answer_;
  result_.measured = std::max(Duration(0), measured_to - measure_from_);
  return result_;
}

void Runner::BeginMeasuring(TimePoint now) {
  measure_from_ = last_answer_ = now;
  end_ = now + options_.duration;
  result_.warmup = now - start_;
}

void Runner::Settle(TimePoint now) {
  if (now - slice_start_ < kSettleSlice) return;
  slice_rates_.push_back(static_cast<double>(slice_ok_) /
                         std::chrono::duration<double>(now - slice_start_).count());
  slice_ok_ = 0;
  slice_start_ = now;
  if (now - start_ < options_.warmup) return;
  bool steady = false;
  if (slice_rates_.size() >= kSettleSlices) {
    const auto last = slice_rates_.end() - kSettleSlices;
    const auto [low, high] = std::minmax_element(last, slice_rates_.end());
    const double mean = std::accumulate(last, slice_rates_.end(), 0.0) / kSettleSlices;
    steady = mean > 0 && *high - *low <= options_.settle_tolerance * mean;
  }
  if (!steady && now - start_ < options_.settle_limit) return;
  result_.settled = steady;
  settling_ = false;
  BeginMeasuring(now);
}

bool Runner::MayIssue(TimePoint now) const {
  if (!issuing_ || (options_.max_requests > 0 && issued_ >= options_.max_requests)) return false;
  return now < end_ || ended_ < options_.min_requests;
}

bool Runner::ShouldStop(TimePoint now) {
  if (options_.interrupt != nullptr && options_.interrupt->load()) {
    result_.interrupted = true;
    return true;
  }
  const bool only_failures =
      failures_since_ok_ >= kFailuresToGiveUp && now - last_ok_ >= options_.give_up;
  if (only_failures) {
    result_.gave_up = true;
    return true;
  }
  return !MayIssue(now);
}

Runner::TimePoint Runner::NextWake(TimePoint now) const {
  TimePoint wake = now + kPoll;
  if (now < end_) wake = std::min(wake, end_);
  if (options_.arrivals != nullptr) {
    const bool sleeps = Dense() && !options_.yield_when_dense;
    wake = std::min(wake, sleeps ? std::max(next_due_, now + kLeastSleep) : next_due_);
  }
  if (!resting_.empty()) wake = std::min(wake, resting_.top().first);
  return wake;
}

bool Runner::Dense() const {
  return options_.arrivals != nullptr && next_due_ - start_ < num_due_ * Duration(kDenseGap);
}

void Runner::YieldUntil(std::unique_lock<std::mutex>& lock, TimePoint until) {
  lock.unlock();
  TimePoint now = time_->Now();
  Duration away{0};  // of the last yield
  while (now < until && away < kOthersRan) {
    sched_yield();
    const TimePoint back = time_->Now();
    away = back - now;
    now = back;
  }
  lock.lock();
  // Whoever yields again and again keeps its share of a processor that others want. The answers to
  // what is in flight start what falls due.
  if (away >= kOthersRan && issued_ > ended_) {
    time_->WaitUntil(lock, changed_, now + kLeastSleep);
  }
}

void Runner::StartDue(std::unique_lock<std::mutex>& lock) {
  while (!resting_.empty() && resting_.top().first <= time_->Now()) {
    free_slots_.push_back(resting_.top().second);
    resting_.pop();
  }
  if (options_.arrivals == nullptr) {
    while (!free_slots_.empty() && MayIssue(time_->Now())) {
      const int slot = free_slots_.back();
      free_slots_.pop_back();
      StartSlot(lock, slot, time_->Now());
    }
    return;
  }
  while (next_due_ <= time_->Now() && next_due_ < end_ && MayIssue(next_due_)) {
    const TimePoint due = next_due_;
    next_due_ = start_ + options_.arrivals->Next();
    ++num_due_;
    if (free_slots_.empty()) {
      // Waiting for a slot would let the server set the pace.
      if (Measured(due)) ++result_.skipped;
      continue;
    }
    const int slot = free_slots_.back();
    free_slots_.pop_back();
    StartSlot(lock, slot, due);
  }
}

void Runner::StartDueHere(std::unique_lock<std::mutex>& lock) {
  // An operation that ends inside Start comes here again: the loop that started it goes on.
  thread_local bool here = false;
  if (here) return;
  here = true;
  StartDue(lock);
  here = false;
}

void Runner::StartSlot(std::unique_lock<std::mutex>& lock, int slot, TimePoint intended) {
  const TimePoint started = time_->Now();
  ++issued_;
  if (Measured(intended)) {
    ++result_.sent;
    result_.schedule_lag.Record(started - intended);
  } else {
    ++result_.warmup_sent;
  }
  ++starting_;
  lock.unlock();
  workload_.Start(slot, options_.timeout, [this, slot, intended, started](OperationResult result) {
    OnDone(slot, intended, started, std::move(result));
  });
  lock.lock();
  --starting_;
  if (!issuing_) changed_.notify_one();
}

void Runner::Count(TimePoint intended, TimePoint started, TimePoint ended,
                   const OperationResult& result) {
  ++ended_;
  if (result.status.ok()) {
    if (settling_) ++slice_ok_;
    last_ok_ = ended;
    failures_since_ok_ = 0;
  } else {
    ++failures_since_ok_;
    if (result_.first_failure.empty()) result_.first_failure = client::ErrorText(result.status);
  }
  if (!Measured(intended)) return;
  last_answer_ = ended;
  if (!result.status.ok()) {
    ++result_.failures[client::ErrorName(result.status)];
    return;
  }
  ++result_.ok;
  result_.tokens += result.tokens;
  result_.latency.Record(ended - intended);
  result_.service_time.Record(ended - started);
  result_.kernel_time.Record(result.kernel_time);
  result_.queue_time.Record(result.queue_time);
  result_.batch_requests_sum += result.batch_requests;
  for (const std::string& kernel : result.kernels) {
    if (result_.kernels.count(kernel) == 0) result_.kernels.insert(kernel);
  }
}

void Runner::OnDone(int slot, TimePoint intended, TimePoint started, OperationResult result) {
  const TimePoint now = time_->Now();
  std::unique_lock<std::mutex> lock(mutex_);
  Count(intended, started, now, result);
  int& failures = failures_in_a_row_[static_cast<std::size_t>(slot)];
  failures = result.status.ok() ? 0 : failures + 1;
  if (options_.arrivals == nullptr && failures > 0 && issuing_) {
    const Duration rest =
        std::min<Duration>(kFirstRest * (1 << std::min(failures - 1, 10)), kLongestRest);
    resting_.emplace(now + rest, slot);
    changed_.notify_one();
    return;
  }
  if (options_.arrivals == nullptr && MayIssue(now)) {
    // From this thread: a hand-over to the run's own thread would cost a switch an operation.
    StartSlot(lock, slot, now);
    return;
  }
  free_slots_.push_back(slot);
  if (issuing_ && options_.arrivals != nullptr) StartDueHere(lock);
  if (!MayIssue(now)) changed_.notify_one();
}

void Runner::ReportProgress(TimePoint now) {
  if (!options_.on_progress || now < next_progress_) return;
  next_progress_ = now + kProgressInterval;
  Progress progress;
  const double by_time =
      std::chrono::duration<double>(now - start_) / std::chrono::duration<double>(end_ - start_);
  const double by_count = options_.max_requests > 0 ? static_cast<double>(issued_) /
                                                          static_cast<double>(options_.max_requests)
                                                    : 0;
  progress.done = std::clamp(std::max(by_time, by_count), 0.0, 1.0);
  progress.ok = result_.ok;
  progress.failed = result_.failed();
  progress.in_flight = issued_ - ended_;
  options_.on_progress(progress);
}

void Runner::Drain(std::unique_lock<std::mutex>& lock) {
  // Every operation has a deadline of its own; the rest is for its status to arrive.
  const bool cut_short = result_.interrupted || result_.gave_up;
  const TimePoint cancel_at =
      time_->Now() + (cut_short ? options_.grace : options_.timeout + options_.grace);
  bool cancelled = false;
  // The last operation may end before the thread that started it is back from Start: that thread
  // still needs this object.
  while (ended_ < issued_ || starting_ > 0) {
    if (!cancelled && time_->Now() >= cancel_at) {
      cancelled = true;
      lock.unlock();
      workload_.Cancel();
      lock.lock();
      continue;
    }
    const bool interrupted = options_.interrupt != nullptr && options_.interrupt->load();
    if (interrupted && !result_.interrupted) {
      result_.interrupted = true;
      lock.unlock();
      workload_.Cancel();
      lock.lock();
    }
    time_->WaitUntil(lock, changed_, time_->Now() + kPoll);
  }
}

}  // namespace attnd::loadtest
