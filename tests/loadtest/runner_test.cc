// The runner on simulated time against a simulated server: no sleep, the same every time. Threads
// only where the test is about them.
#include "loadtest/runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "tests/support/simulated_time.h"

namespace attnd::loadtest {
namespace {

using client::SimulatedTime;
using client::TimePoint;
using std::chrono::milliseconds;
using std::chrono::seconds;

double Milliseconds(LatencyRecorder::Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

// One server that takes requests in turn; `freeze_from` to `freeze_to` nothing starts.
class SimulatedServer final : public Workload {
 public:
  explicit SimulatedServer(SimulatedTime& time) : time_(time) {}

  absl::Status Prepare(int) override { return absl::OkStatus(); }
  void Start(int, std::chrono::nanoseconds, Done done) override {
    TimePoint begin = std::max(time_.Now(), free_at_);
    if (begin >= freeze_from && begin < freeze_to) begin = freeze_to;
    free_at_ = begin + service;
    OperationResult result;
    result.tokens = 10;
    result.status = rule ? rule(started_) : absl::OkStatus();
    ++started_;
    if (lost) {
      lost_.push_back(std::make_shared<Done>(std::move(done)));
      return;
    }
    time_.At(result.status.ok() ? free_at_ : time_.Now(),
             [done = std::make_shared<Done>(std::move(done)), result] { (*done)(result); });
  }
  void Cancel() override {
    ++cancels;
    for (const auto& done : std::exchange(lost_, {})) {
      OperationResult result;
      result.status = absl::CancelledError("");
      (*done)(result);
    }
  }
  void SetExecution(const v1::ExecutionOptions&) override {}

  milliseconds service{2};
  TimePoint freeze_from = TimePoint::max(), freeze_to{};
  std::function<absl::Status(std::int64_t)> rule;
  bool lost = false;  // requests are never answered, until cancelled
  int cancels = 0;

 private:
  SimulatedTime& time_;
  TimePoint free_at_{};
  std::int64_t started_ = 0;
  std::vector<std::shared_ptr<Done>> lost_;
};

class RunnerTest : public ::testing::Test {
 protected:
  RunResult Run(RunOptions options) { return Runner(std::move(options), server_, time_).Run(); }

  std::shared_ptr<SimulatedTime> time_ = std::make_shared<SimulatedTime>();
  SimulatedServer server_{*time_};
};

// 100 requests a second for 10 s, 2 ms each; the server freezes for 2 s at 4 s. 200 requests fall
// due in the freeze and 50 behind it: a quarter of all waits 0 to 2 s.
TEST_F(RunnerTest, AStallShowsInLatencyFromTheIntendedStart) {
  server_.freeze_from = time_->Now() + seconds(4);
  server_.freeze_to = server_.freeze_from + seconds(2);
  const auto arrivals = ConstantArrivals(100);
  RunOptions options;
  options.slots = 1024;
  options.arrivals = arrivals.get();
  options.duration = seconds(10);
  const RunResult result = Run(options);
  EXPECT_EQ(result.sent, 1000);
  EXPECT_EQ(result.ok, 1000);
  EXPECT_EQ(result.skipped, 0);
  EXPECT_GE(Milliseconds(result.latency.Percentile(0.9)), 900);
  EXPECT_LE(Milliseconds(result.latency.Percentile(0.9)), 1400);
  EXPECT_GE(Milliseconds(result.latency.Percentile(0.99)), 1700);
  EXPECT_LE(Milliseconds(result.latency.Percentile(0.99)), 2100);
  EXPECT_LT(Milliseconds(result.schedule_lag.max()), 1) << "the plan was kept";
  EXPECT_NEAR(result.requests_per_second(), 100, 1);
}

// A server that answers ever faster for 4 s and then evenly: the measured time begins there.
TEST_F(RunnerTest, TheWarmUpEndsWhenTheRateIsSteady) {
  const TimePoint start = time_->Now();
  server_.rule = [&](std::int64_t) {
    const double since = std::chrono::duration<double>(time_->Now() - start).count();
    server_.service = milliseconds(since < 4 ? 20 - static_cast<int>(since * 4) : 4);
    return absl::OkStatus();
  };
  RunOptions options;
  options.settle_tolerance = 0.05;
  options.duration = seconds(2);
  const RunResult result = Run(options);
  ASSERT_TRUE(result.settled.has_value());
  EXPECT_TRUE(*result.settled);
  // Four even half seconds after the fourth second, and what is left of the one under way.
  EXPECT_GE(Milliseconds(result.warmup), 6000 - 50);
  EXPECT_LE(Milliseconds(result.warmup), 6600);
  EXPECT_NEAR(result.requests_per_second(), 250, 3);
  EXPECT_GT(result.warmup_sent, 0);
}

TEST_F(RunnerTest, ARateThatGoesOnChangingIsMeasuredAndSaidSo) {
  const TimePoint start = time_->Now();
  server_.rule = [&](std::int64_t) {
    const auto since = std::chrono::duration_cast<milliseconds>(time_->Now() - start).count();
    server_.service = milliseconds(since / 500 % 2 == 0 ? 2 : 10);
    return absl::OkStatus();
  };
  RunOptions options;
  options.settle_tolerance = 0.05;
  options.settle_limit = seconds(5);
  options.duration = seconds(1);
  const RunResult result = Run(options);
  ASSERT_TRUE(result.settled.has_value());
  EXPECT_FALSE(*result.settled);
  EXPECT_GE(Milliseconds(result.warmup), 5000);
  EXPECT_GT(result.ok, 0);
}

TEST_F(RunnerTest, AServerThatOnlyFailsDoesNotKeepTheWarmUpGoing) {
  server_.rule = [](std::int64_t) { return absl::UnavailableError("no"); };
  RunOptions options;
  options.settle_tolerance = 0.05;
  const RunResult result = Run(options);
  EXPECT_TRUE(result.gave_up);
  EXPECT_EQ(result.ok, 0);
}

// The same stall with few slots: requests that cannot be sent are counted, not sent late.
TEST_F(RunnerTest, DueRequestsBeyondTheInFlightLimitAreCountedAsSkipped) {
  server_.freeze_from = time_->Now() + seconds(4);
  server_.freeze_to = server_.freeze_from + seconds(2);
  const auto arrivals = ConstantArrivals(100);
  RunOptions options;
  options.slots = 20;
  options.arrivals = arrivals.get();
  options.duration = seconds(10);
  const RunResult result = Run(options);
  EXPECT_EQ(result.sent + result.skipped, 1000);
  EXPECT_NEAR(static_cast<double>(result.skipped), 180, 5);
}

// 20,000 a second: the run's thread wakes for several at a time, and sends each of them.
TEST_F(RunnerTest, DenseArrivalsAreAllSentAtMostAFewTenthsOfAMillisecondLate) {
  const auto arrivals = ConstantArrivals(20'000);
  server_.service = milliseconds(0);
  RunOptions options;
  options.slots = 64;
  options.arrivals = arrivals.get();
  options.duration = seconds(1);
  const RunResult result = Run(options);
  EXPECT_EQ(result.ok, 20'000);
  EXPECT_EQ(result.skipped, 0);
  EXPECT_GT(result.schedule_lag.max(), std::chrono::microseconds(10)) << "woken for each of them";
  EXPECT_LT(result.schedule_lag.max(), std::chrono::microseconds(200));
}

// The machine is busy: the run's own thread sleeps from 0.75 s past the end of the run.
TEST_F(RunnerTest, RequestsThatFellDueBeforeTheEndAreSentAfterALongSleep) {
  const auto arrivals = ConstantArrivals(10);
  RunOptions options;
  options.slots = 8;
  options.arrivals = arrivals.get();
  options.duration = seconds(1);
  const std::int64_t planned = Run(options).sent;
  const auto again = ConstantArrivals(10);
  options.arrivals = again.get();
  const TimePoint start = time_->Now();
  options.on_progress = [&](const Progress&) {
    if (time_->Now() < start + milliseconds(750)) return;
    std::mutex mutex;
    std::condition_variable never_notified;
    std::unique_lock<std::mutex> lock(mutex);
    time_->WaitUntil(lock, never_notified, start + milliseconds(1050));
  };
  const RunResult result = Run(options);
  EXPECT_GE(time_->Now(), start + milliseconds(1050));
  EXPECT_EQ(result.sent, planned);
  EXPECT_GT(Milliseconds(result.schedule_lag.max()), 50) << "and shown as late";
}

TEST_F(RunnerTest, AClosedLoopSendsWhatItsWorkersCan) {
  RunOptions options;
  options.slots = 4;
  options.duration = seconds(2);
  const RunResult result = Run(options);
  EXPECT_NEAR(result.requests_per_second(), 500, 2) << "one server, 2 ms each";
  EXPECT_NEAR(result.tokens_per_second(), 5000, 20);
  EXPECT_NEAR(Milliseconds(result.latency.Percentile(0.5)), 8, 0.1);
}

TEST_F(RunnerTest, TheWarmUpIsSentAndNotMeasured) {
  RunOptions options;
  options.warmup = seconds(1);
  options.duration = seconds(2);
  const RunResult result = Run(options);
  EXPECT_EQ(result.warmup_sent, 500);
  EXPECT_EQ(result.sent, 1000);
  EXPECT_EQ(result.latency.count(), 1000);
}

TEST_F(RunnerTest, EverythingSentEndsAsOkOrAsACountedFailure) {
  v1::ErrorDetail detail;
  detail.set_reason(v1::REASON_QUEUE_FULL);
  const absl::Status full =
      client::StatusWithDetail(absl::StatusCode::kResourceExhausted, detail, "full");
  server_.rule = [&](std::int64_t call) -> absl::Status {
    if (call % 20 < 6) return full;
    return call % 20 == 6 ? absl::UnavailableError("lost") : absl::OkStatus();
  };
  RunOptions options;
  options.slots = 4;
  options.duration = seconds(1000);
  options.max_requests = 1000;
  const RunResult result = Run(options);
  EXPECT_EQ(result.sent, 1000);
  EXPECT_EQ(result.failures.at("RESOURCE_EXHAUSTED/QUEUE_FULL"), 300);
  EXPECT_EQ(result.failures.at("UNAVAILABLE"), 50);
  EXPECT_EQ(result.ok, 650);
  EXPECT_EQ(result.ok + result.failed(), result.sent);
  EXPECT_EQ(result.latency.count(), 650) << "latencies are of OK answers only";
  EXPECT_EQ(result.tokens, 6500);
  EXPECT_NEAR(result.failure_ratio(), 0.35, 1e-9);
}

TEST_F(RunnerTest, AServerThatIsGoneEndsTheRunWithinTenSeconds) {
  server_.rule = [](std::int64_t call) {
    return call < 100 ? absl::OkStatus() : absl::UnavailableError("connection refused");
  };
  for (const bool open : {false, true}) {
    const auto arrivals = ConstantArrivals(100);
    RunOptions options;
    options.slots = 8;
    options.arrivals = open ? arrivals.get() : nullptr;
    options.duration = seconds(600);
    const TimePoint start = time_->Now();
    const RunResult result = Run(options);
    EXPECT_TRUE(result.gave_up);
    EXPECT_LE(time_->Now() - start, seconds(10));
    EXPECT_EQ(result.ok + result.failed(), result.sent);
    EXPECT_NE(result.first_failure.find("connection refused"), std::string::npos);
  }
}

TEST_F(RunnerTest, AClosedLoopDoesNotSpinOnFailures) {
  server_.rule = [](std::int64_t) { return absl::UnavailableError(""); };
  RunOptions options;
  options.slots = 1;
  options.duration = seconds(600);
  const RunResult result = Run(options);
  EXPECT_LT(result.sent, 50);
}

TEST_F(RunnerTest, AnInterruptLeavesAPartialReportSoon) {
  std::atomic<bool> interrupt{false};
  time_->At(time_->Now() + seconds(3), [&] { interrupt = true; });
  RunOptions options;
  options.duration = seconds(600);
  options.interrupt = &interrupt;
  const TimePoint start = time_->Now();
  const RunResult result = Run(options);
  EXPECT_TRUE(result.interrupted);
  EXPECT_LT(time_->Now() - start, seconds(4));
  EXPECT_NEAR(static_cast<double>(result.ok), 1500, 50);
  EXPECT_EQ(result.ok, result.sent);
}

TEST_F(RunnerTest, RequestsThatAreNeverAnsweredAreCancelledAndCounted) {
  server_.lost = true;
  RunOptions options;
  options.slots = 3;
  options.duration = seconds(1);
  options.timeout = seconds(2);
  const RunResult result = Run(options);
  EXPECT_EQ(server_.cancels, 1);
  EXPECT_EQ(result.sent, 3);
  EXPECT_EQ(result.failures.at("CANCELLED"), 3);
}

TEST_F(RunnerTest, LongOperationsExtendARunToItsMinimum) {
  server_.service = milliseconds(700);
  RunOptions options;
  options.duration = milliseconds(100);
  options.min_requests = 3;
  const RunResult result = Run(options);
  EXPECT_EQ(result.ok, 3);
  EXPECT_NEAR(result.tokens_per_second(), 10 / 0.7, 0.1);
}

TEST_F(RunnerTest, ProgressReachesTheEnd) {
  std::vector<double> progress;
  RunOptions options;
  options.duration = seconds(2);
  options.on_progress = [&](const Progress& step) { progress.push_back(step.done); };
  Run(options);
  ASSERT_GE(progress.size(), 7U);
  EXPECT_TRUE(std::is_sorted(progress.begin(), progress.end()));
  EXPECT_GT(progress.back(), 0.8);
  EXPECT_LE(progress.back(), 1.0);
}

// Operations end on threads of their own; the second one ends while the thread that started it,
// which is not the run's, is still inside Start.
class SlowStarts final : public Workload {
 public:
  absl::Status Prepare(int) override { return absl::OkStatus(); }
  void Start(int, std::chrono::nanoseconds, Done done) override {
    if (starts_.fetch_add(1) == 0) {
      first_ = std::thread([done = std::move(done)]() mutable { done({}); });
      return;
    }
    std::thread([done = std::move(done)]() mutable { done({}); }).join();
    left_run_first =
        run_ended.get_future().wait_for(milliseconds(300)) == std::future_status::ready;
  }
  void Cancel() override {}
  void SetExecution(const v1::ExecutionOptions&) override {}
  void Join() { first_.join(); }

  std::promise<void> run_ended;
  bool left_run_first = false;

 private:
  std::atomic<int> starts_{0};
  std::thread first_;
};

// Whoever owns the run destroys it next: a thread that comes back later locks a dead mutex.
TEST(RunnerThreadsTest, ARunEndsAfterTheLastStartHasReturned) {
  SlowStarts workload;
  RunOptions options;
  options.max_requests = 2;
  Runner runner(options, workload, client::SystemTime());
  const RunResult result = runner.Run();
  workload.run_ended.set_value();
  workload.Join();
  EXPECT_EQ(result.ok, 2);
  EXPECT_FALSE(workload.left_run_first);
}

// Every operation ends at once.
class Immediate final : public Workload {
 public:
  absl::Status Prepare(int) override { return absl::OkStatus(); }
  void Start(int, std::chrono::nanoseconds, Done done) override { done({}); }
  void Cancel() override {}
  void SetExecution(const v1::ExecutionOptions&) override {}
};

TEST(RunnerThreadsTest, DenseArrivalsAreSentByAThreadThatDoesNotSleep) {
  Immediate workload;
  const auto arrivals = ConstantArrivals(10'000);
  RunOptions options;
  options.slots = 8;
  options.arrivals = arrivals.get();
  options.yield_when_dense = true;
  options.duration = milliseconds(200);
  Runner runner(options, workload, client::SystemTime());
  const RunResult result = runner.Run();
  EXPECT_EQ(result.ok, 2000);
  EXPECT_LT(Milliseconds(result.schedule_lag.Percentile(0.5)), 0.05) << "later than after a sleep";
}

// Each look at the time takes as long as if another thread had worked meanwhile.
class BusyProcessor final : public client::TimeSource {
 public:
  TimePoint Now() const override { return now_ += std::chrono::microseconds(10); }
  void WaitUntil(std::unique_lock<std::mutex>&, std::condition_variable&,
                 TimePoint until) override {
    ++waits;
    now_ = std::max(now_, until);
  }

  int waits = 0;

 private:
  mutable TimePoint now_{};
};

// The first operation goes on until the run is cancelled.
class HeldFirst final : public Workload {
 public:
  absl::Status Prepare(int) override { return absl::OkStatus(); }
  void Start(int, std::chrono::nanoseconds, Done done) override {
    if (held_ || cancelled_) return done({});
    held_ = std::move(done);
  }
  void Cancel() override {
    cancelled_ = true;
    std::exchange(held_, nullptr)({});
  }
  void SetExecution(const v1::ExecutionOptions&) override {}

 private:
  Done held_;
  bool cancelled_ = false;
};

int WaitsOnABusyProcessor(Workload& workload) {
  const auto arrivals = ConstantArrivals(10'000);
  RunOptions options;
  options.slots = 8;
  options.arrivals = arrivals.get();
  options.yield_when_dense = true;
  options.duration = milliseconds(20);
  options.timeout = options.grace = milliseconds(1);
  const auto time = std::make_shared<BusyProcessor>();
  Runner runner(options, workload, time);
  EXPECT_EQ(runner.Run().ok, 200);
  return time->waits;
}

TEST(RunnerThreadsTest, DenseArrivalsLeaveABusyProcessorToWhatIsInFlight) {
  HeldFirst in_flight;
  EXPECT_GT(WaitsOnABusyProcessor(in_flight), 20);
  Immediate nothing_in_flight;
  EXPECT_EQ(WaitsOnABusyProcessor(nothing_in_flight), 0) << "nobody else would start what is due";
}

// The second operation keeps the run's own thread inside Start; the answer to the first one comes
// meanwhile.
class HeldStart final : public Workload {
 public:
  absl::Status Prepare(int) override { return absl::OkStatus(); }
  void Start(int, std::chrono::nanoseconds, Done done) override {
    const int start = ++starts_;
    if (start == 1) {
      first_ = std::thread([done = std::move(done)]() mutable {
        std::this_thread::sleep_for(milliseconds(50));
        done({});
      });
      return;
    }
    if (start == 2) {
      others_went_on = third_.get_future().wait_for(seconds(10)) == std::future_status::ready;
    }
    if (start == 3) third_.set_value();
    done({});
  }
  void Cancel() override {}
  void SetExecution(const v1::ExecutionOptions&) override {}
  void Join() { first_.join(); }

  bool others_went_on = false;

 private:
  std::atomic<int> starts_{0};
  std::promise<void> third_;
  std::thread first_;
};

TEST(RunnerThreadsTest, AThreadThatBringsAnAnswerStartsWhatIsDue) {
  HeldStart workload;
  const auto arrivals = ConstantArrivals(100);
  RunOptions options;
  options.slots = 8;
  options.arrivals = arrivals.get();
  options.max_requests = 5;
  Runner runner(options, workload, client::SystemTime());
  const RunResult result = runner.Run();
  workload.Join();
  EXPECT_TRUE(workload.others_went_on);
  EXPECT_EQ(result.ok, 5);
}

}  // namespace
}  // namespace attnd::loadtest
