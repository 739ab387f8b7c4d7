#include "server/watchdog.h"

#include <atomic>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/await.h"

namespace attnd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Await;
using ::testing::HasSubstr;
using State = HealthState::State;

class SteppedClock final : public Clock {
 public:
  TimePoint Now() const override { return TimePoint(Duration(nanoseconds_.load())); }
  void Advance(Duration duration) { nanoseconds_ += duration.count(); }

 private:
  std::atomic<std::int64_t> nanoseconds_{Duration(seconds(5000)).count()};
};

class WatchdogTest : public ::testing::Test {
 protected:
  WatchdogTest() { inputs_.self_test_passed = true; }

  HealthState::Report After(Clock::Duration duration) {
    clock_.Advance(duration);
    watchdog_.Evaluate();
    return health_.GetReport();
  }
  void BeginWork() { inputs_.work_in_flight = true; }
  void Complete() { inputs_.last_completion = clock_.Now(); }

  SteppedClock clock_;
  ReadinessInputs inputs_;
  HealthState health_;
  Watchdog watchdog_{clock_, seconds(30), [this] { return inputs_; }, health_};
};

TEST_F(WatchdogTest, ServesOnlyAfterTheSelfTest) {
  inputs_.self_test_passed = false;
  EXPECT_EQ(After(seconds(1)).state, State::kNotServing);
  EXPECT_THAT(health_.GetReport().reason, HasSubstr("self-test"));
  inputs_.self_test_passed = true;
  EXPECT_EQ(After(seconds(0)).state, State::kServing);
}

TEST_F(WatchdogTest, AnIdleDeviceIsNotStuck) {
  EXPECT_EQ(After(seconds(1)).state, State::kServing);
  EXPECT_EQ(After(seconds(3600)).state, State::kServing);
}

TEST_F(WatchdogTest, WorkAfterALongIdleSpellIsNotStuckYet) {
  Complete();
  After(seconds(3600));
  BeginWork();
  EXPECT_EQ(After(seconds(29)).state, State::kServing);
  EXPECT_EQ(After(seconds(2)).state, State::kNotServing);
}

TEST_F(WatchdogTest, TheFirstDecisionDoesNotCountTheTimeBefore) {
  BeginWork();
  EXPECT_EQ(After(seconds(100)).state, State::kServing);
}

TEST_F(WatchdogTest, NoCompletionForTheLimitIsAStallAndTheNextOneEndsIt) {
  After(seconds(1));
  BeginWork();
  Complete();
  EXPECT_EQ(After(milliseconds(29'999)).state, State::kServing);
  EXPECT_EQ(After(milliseconds(1)).state, State::kNotServing);
  EXPECT_THAT(health_.GetReport().reason, HasSubstr("no completion for 30 s"));
  Complete();
  EXPECT_EQ(After(seconds(0)).state, State::kServing);
}

TEST_F(WatchdogTest, SteadyCompletionsUnderConstantLoadAreNoStall) {
  After(seconds(1));
  BeginWork();
  for (int i = 0; i < 100; ++i) {
    Complete();
    EXPECT_EQ(After(seconds(10)).state, State::kServing);
  }
}

TEST_F(WatchdogTest, LookingOftenDoesNotHideAStall) {
  After(seconds(1));
  BeginWork();
  for (int i = 0; i < 29; ++i) EXPECT_EQ(After(seconds(1)).state, State::kServing);
  EXPECT_EQ(After(seconds(1)).state, State::kNotServing);
}

TEST_F(WatchdogTest, GoingIdleEndsAStall) {
  After(seconds(1));
  BeginWork();
  EXPECT_EQ(After(seconds(31)).state, State::kNotServing);
  inputs_.work_in_flight = false;
  EXPECT_EQ(After(seconds(1)).state, State::kServing);
}

TEST_F(WatchdogTest, ADeviceFaultIsForGood) {
  EXPECT_EQ(After(seconds(1)).state, State::kServing);
  inputs_.device_fault = true;
  EXPECT_EQ(After(seconds(0)).state, State::kNotServing);
  EXPECT_EQ(health_.GetReport().reason, "device fault");
  inputs_.device_fault = false;
  Complete();
  EXPECT_EQ(After(seconds(1)).state, State::kNotServing);
}

TEST_F(WatchdogTest, AStoppingServerDoesNotServe) {
  EXPECT_EQ(After(seconds(1)).state, State::kServing);
  inputs_.stopping = true;
  EXPECT_EQ(After(seconds(0)).reason, "stopping");
}

TEST_F(WatchdogTest, ACompletionTimeInTheFutureDoesNotSuspendTheLimit) {
  After(seconds(1));
  BeginWork();
  inputs_.last_completion = clock_.Now() + seconds(3600);
  After(seconds(0));
  inputs_.last_completion = clock_.Now();
  EXPECT_EQ(After(seconds(30)).state, State::kNotServing);
}

TEST(WatchdogThreadTest, SeesChangesByItself) {
  const SteadyClock clock;
  HealthState health;
  std::atomic<bool> fault{false};
  Watchdog watchdog(
      clock, seconds(30),
      [&fault] {
        ReadinessInputs inputs;
        inputs.self_test_passed = true;
        inputs.device_fault = fault.load();
        return inputs;
      },
      health);
  watchdog.Start(milliseconds(1));
  EXPECT_TRUE(Await([&] { return health.Get() == State::kServing; }));
  fault.store(true);
  EXPECT_TRUE(Await([&] { return health.Get() == State::kNotServing; }));
  watchdog.Stop();
  watchdog.Stop();
  EXPECT_EQ(health.GetReport().reason, "device fault");
}

}  // namespace
}  // namespace attnd
