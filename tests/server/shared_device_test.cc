// The policy over time: a generation that sends a step after each answer, beside an endless prompt,
// on a device that runs one launch after the other. The clock is simulated, so that shares and
// waits are exact.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "server/batch_policy.h"

namespace attnd {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

struct Times {
  Clock::Duration think, step, chunk;
};

class SharedDevice {
 public:
  SharedDevice(const BatchPolicyConfig& config, const Times& times)
      : config_(config), times_(times) {}

  void Run(Clock::Duration duration) {
    while (now_ - kStart < duration) {
      now_ = std::min({asks_, step_ends_, chunk_ends_, wake_});
      if (now_ == Clock::kNever) break;  // nobody will ever ask the policy again
      EndWhatIsDone();
      LaunchWhatThePolicyWants();
    }
    EXPECT_LT(now_, Clock::kNever);
    step_share = steps_ * std::chrono::duration<double>(times_.step) / duration;
    chunk_share = chunks_ * std::chrono::duration<double>(times_.chunk) / duration;
  }

  double step_share = 0, chunk_share = 0;  // of the time
  Clock::Duration longest_wait{0};         // of a step, for its launch to begin

 private:
  static constexpr Clock::TimePoint kStart{std::chrono::hours(1)};

  void EndWhatIsDone() {
    if (now_ == step_ends_) {
      step_ends_ = Clock::kNever;
      turns_.decode_ended = now_;
      asks_ = now_ + times_.think;
    }
    if (now_ == chunk_ends_) {
      chunk_ends_ = Clock::kNever;
      turns_.prefill_ended = now_;
      turns_.prefill_time = times_.chunk;
    }
    if (now_ == asks_) {
      asks_ = Clock::kNever;
      asked_ = now_;
      step_waits_ = true;
    }
  }

  void LaunchWhatThePolicyWants() {
    while (true) {
      entries_.clear();
      if (chunk_ends_ == Clock::kNever) AddEntry(QueueClass::kPrefill, 1'000'000);
      if (step_waits_) AddEntry(QueueClass::kDecode, 1);
      const BatchDecision decision = Decide();
      wake_ = decision.wait_until;
      if (decision.kind != BatchDecision::Kind::kDispatch) return;
      Launch(entries_[decision.takes.at(0).entry].queue_class);
    }
  }

  void AddEntry(QueueClass queue_class, std::int32_t tokens) {
    QueueEntry& entry = entries_.emplace_back();
    entry.queue_class = queue_class;
    entry.admitted = kStart;
    entry.sequences = 1;
    entry.tokens = entry.most_tokens = entry.prefill.tokens = tokens;
    entry.prefill.work_per_row = 1;
  }

  BatchDecision Decide() const {
    QueueView view;
    view.entries = entries_;
    view.tenant_used = used_;
    view.work_per_second = rates_;
    view.prefill_batches_in_flight = chunk_ends_ == Clock::kNever ? 0 : 1;
    view.batches_in_flight = view.prefill_batches_in_flight + (step_ends_ == Clock::kNever ? 0 : 1);
    view.turns = turns_;
    return DecideBatch(config_, view, now_);
  }

  void Launch(QueueClass queue_class) {
    const Clock::TimePoint begins = std::max(now_, device_free_);
    turns_.decode_since_prefill = queue_class == QueueClass::kDecode;
    if (queue_class == QueueClass::kDecode) {
      step_waits_ = false;
      longest_wait = std::max(longest_wait, begins - asked_);
      device_free_ = step_ends_ = begins + times_.step;
      ++steps_;
    } else {
      device_free_ = chunk_ends_ = begins + times_.chunk;
      ++chunks_;
    }
  }

  const BatchPolicyConfig config_;
  const Times times_;
  const std::vector<double> used_{0}, rates_{1000};
  Clock::TimePoint now_ = kStart, device_free_ = kStart, asked_ = kStart;
  Clock::TimePoint asks_ = kStart, wake_ = kStart;
  Clock::TimePoint step_ends_ = Clock::kNever, chunk_ends_ = Clock::kNever;
  std::vector<QueueEntry> entries_;
  DeviceTurns turns_;
  bool step_waits_ = false;
  int steps_ = 0, chunks_ = 0;
};

class SharedDeviceTest : public testing::Test {
 protected:
  SharedDeviceTest() {
    config_.max_batch_sequences = 8;
    config_.max_batch_tokens = 1000;
    config_.prefill_chunk_time = milliseconds(20);
    config_.decode_share = 0.35;
    config_.decode_gap = milliseconds(2);
  }
  SharedDevice Run(Times times) const {
    SharedDevice device(config_, times);
    device.Run(std::chrono::seconds(2));
    return device;
  }
  BatchPolicyConfig config_;
};

TEST_F(SharedDeviceTest, AGenerationKeepsItsShareOfItsOwnRate) {
  const SharedDevice device = Run({microseconds(400), microseconds(300), milliseconds(20)});
  const double undisturbed = 0.3 / 0.7;
  EXPECT_GE(device.step_share / undisturbed, 0.35);
  EXPECT_GE(device.chunk_share, 0.6);
  EXPECT_LE(device.longest_wait, milliseconds(20));
}

TEST_F(SharedDeviceTest, WithoutAShareAStepGoesBetweenTwoChunks) {
  config_.decode_share = 0;
  const SharedDevice device = Run({microseconds(400), microseconds(300), milliseconds(20)});
  EXPECT_NEAR(device.step_share, 0.3 / 20.3, 0.002);
  EXPECT_GE(device.chunk_share, 0.98);
}

TEST_F(SharedDeviceTest, StepsWithoutAPauseLeavePrefillTheRest) {
  const SharedDevice device = Run({microseconds(0), milliseconds(1), milliseconds(20)});
  EXPECT_NEAR(device.step_share, 0.35, 0.06);
  EXPECT_NEAR(device.chunk_share, 0.65, 0.06);
}

TEST_F(SharedDeviceTest, AGenerationThatPausesForLongCostsAGapAChunk) {
  const SharedDevice device = Run({milliseconds(50), milliseconds(1), milliseconds(20)});
  EXPECT_GE(device.chunk_share, 0.9);
  EXPECT_LE(device.longest_wait, milliseconds(20));
}

}  // namespace
}  // namespace attnd
