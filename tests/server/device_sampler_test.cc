#include "server/device_sampler.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "tests/support/await.h"
#include "tests/support/fake_clock.h"

namespace attnd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Shared with the test: the sampler may let go of a reading that never returns.
struct Control {
  std::mutex mutex;
  std::condition_variable changed;
  bool held = false;  // readings do not return
  int begun = 0, readings = 0;

  void Hold(bool hold) {
    const std::lock_guard lock(mutex);
    held = hold;
    changed.notify_all();
  }
  // One is under way.
  bool AwaitBegun() {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, seconds(10), [this] { return begun > readings; });
  }
};

class ControlledSensors final : public DeviceSensors {
 public:
  explicit ControlledSensors(std::shared_ptr<Control> control) : control_(std::move(control)) {}
  DeviceReading Read() override {
    std::unique_lock lock(control_->mutex);
    ++control_->begun;
    control_->changed.notify_all();
    control_->changed.wait(lock, [this] { return !control_->held; });
    DeviceReading reading;
    reading.power_watts = ++control_->readings;
    control_->changed.notify_all();
    return reading;
  }

 private:
  const std::shared_ptr<Control> control_;
};

class DeviceSamplerTest : public ::testing::Test {
 protected:
  void Start(milliseconds period) {
    sampler_ = std::make_unique<DeviceSampler>(
        clock_, "cuda:0", std::make_unique<ControlledSensors>(control_), period);
  }
  // Until the reading of so many watts, or a later one, can be seen.
  bool AwaitPower(double watts) {
    return testing::Await([&] { return sampler_->Latest().power_watts.value_or(0) >= watts; });
  }

  FakeClock clock_;
  const std::shared_ptr<Control> control_ = std::make_shared<Control>();
  std::unique_ptr<DeviceSampler> sampler_;
};

TEST_F(DeviceSamplerTest, KeepsTheLatestReadingUnderItsDevice) {
  control_->Hold(true);
  Start(milliseconds(1));
  EXPECT_EQ(sampler_->Latest().device, "");
  control_->Hold(false);
  ASSERT_TRUE(AwaitPower(2));
  EXPECT_EQ(sampler_->Latest().device, "cuda:0");
  EXPECT_FALSE(sampler_->Latest().temperature_celsius.has_value());
}

TEST_F(DeviceSamplerTest, AReadingThatTakesLongDelaysNobodyAndGrowsStale) {
  Start(milliseconds(1));
  ASSERT_TRUE(AwaitPower(1));
  control_->Hold(true);
  ASSERT_TRUE(control_->AwaitBegun());
  EXPECT_EQ(sampler_->Latest().device, "cuda:0");
  clock_.Advance(seconds(9));
  EXPECT_EQ(sampler_->Latest().device, "cuda:0");
  clock_.Advance(seconds(2));
  EXPECT_EQ(sampler_->Latest().device, "");
  control_->Hold(false);
  ASSERT_TRUE(AwaitPower(2));
}

TEST_F(DeviceSamplerTest, StopDoesNotWaitForThePeriod) {
  Start(std::chrono::hours(1));
  ASSERT_TRUE(AwaitPower(1));
  const auto begin = std::chrono::steady_clock::now();
  sampler_->Stop();
  sampler_->Stop();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(900));
  EXPECT_EQ(sampler_->Latest().power_watts, 1);
}

TEST_F(DeviceSamplerTest, ADriverThatNeverAnswersDoesNotKeepTheProcess) {
  control_->Hold(true);
  Start(milliseconds(1));
  ASSERT_TRUE(control_->AwaitBegun());
  sampler_.reset();  // returns
  // The reading comes back to nobody, and its thread ends.
  control_->Hold(false);
  EXPECT_TRUE(testing::Await([&] { return control_.use_count() == 1; }));
}

}  // namespace
}  // namespace attnd
