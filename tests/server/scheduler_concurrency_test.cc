// The scheduler under threads: every request is answered exactly once, nothing is left behind. The
// clock and the timer thread are real; outcomes depend on timing, counts must not.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <random>
#include <thread>

#include "server/error_status.h"
#include "server/metrics.h"
#include "server/scheduler.h"
#include "server/server_config.h"
#include "tests/support/engine_requests.h"
#include "tests/support/puppet_backend.h"

namespace attnd {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

const HeadShape kShape;

class SchedulerConcurrencyTest : public testing::Test {
 protected:
  SchedulerConcurrencyTest()
      : metrics_(BuildInfo{}, "puppet", clock_),
        scheduler_(config_, "key1", clock_, backend_, metrics_),
        device_([this] {
          while (!stop_) {
            if (!backend_.Complete()) std::this_thread::yield();
          }
          backend_.CompleteAll();
        }) {}
  ~SchedulerConcurrencyTest() override { StopDevice(); }

  void StopDevice() {
    stop_ = true;
    if (device_.joinable()) device_.join();
  }

  SteadyClock clock_;
  ServerConfig config_;
  PuppetBackend backend_;
  Metrics metrics_;
  Scheduler scheduler_;
  std::atomic<bool> stop_{false};
  std::thread device_;
};

TEST_F(SchedulerConcurrencyTest, CancelAndDeadlineRaceWithCompletion) {
  constexpr int kThreads = 4, kRequests = 2000;
  std::atomic<int> answers{0}, unexpected{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int i = 0; i < kRequests; ++i) {
        AttentionRequest request = MakeAttend(kShape, 1, 2);
        if (random() % 2 == 0) request.deadline = clock_.Now() + microseconds(random() % 40);
        request.on_done = RequestCompletion([&](AttentionResult result) {
          ++answers;
          const absl::StatusCode code = result.status.code();
          const bool expected = code == absl::StatusCode::kOk ||
                                code == absl::StatusCode::kCancelled ||
                                code == absl::StatusCode::kDeadlineExceeded ||
                                code == absl::StatusCode::kResourceExhausted;
          if (!expected) ++unexpected;
        });
        const Ticket ticket = scheduler_.Submit(std::move(request));
        if (random() % 2 == 0) scheduler_.Cancel(ticket);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  scheduler_.BeginStop();
  scheduler_.Drain(std::chrono::seconds(60));
  StopDevice();
  EXPECT_EQ(answers, kThreads * kRequests);
  EXPECT_EQ(unexpected, 0);
  const auto snapshot = scheduler_.GetSnapshot();
  EXPECT_EQ(snapshot.queue_requests, 0);
  EXPECT_EQ(snapshot.queue_bytes, 0);
  EXPECT_EQ(snapshot.running_requests, 0);
  EXPECT_TRUE(scheduler_.Idle());
}

// Steps, forks, truncations, deletions and expiry of a few sequences from many threads.
TEST_F(SchedulerConcurrencyTest, SequenceOperationsRaceWithSteps) {
  constexpr int kThreads = 4, kOperations = 1500;
  std::mutex ids_mutex;
  std::vector<std::string> ids;
  std::atomic<int> asked{0}, answered{0};
  const auto any_id = [&](std::mt19937& random) {
    const std::lock_guard lock(ids_mutex);
    return ids.empty() ? std::string(24, 'x') : ids[random() % ids.size()];
  };
  const auto keep = [&](const std::string& id) {
    const std::lock_guard lock(ids_mutex);
    ids.push_back(id);
    if (ids.size() > 12) ids.erase(ids.begin());
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(100 + t));
      for (int i = 0; i < kOperations; ++i) {
        const std::string id = any_id(random);
        ++asked;
        switch (random() % 8) {
          case 0: {
            CreateSequenceSpec spec = MakeSequenceSpec(kShape, 2);
            spec.lease = milliseconds(20);
            const auto grant = scheduler_.CreateSequence(spec);
            if (grant.ok()) keep(grant->sequence_id);
            ++answered;
            break;
          }
          case 1: {
            ForkSequenceSpec spec;
            spec.tenant = "default";
            spec.sequence_id = id;
            spec.lease = milliseconds(20);
            scheduler_.ForkSequence(spec, [&](absl::StatusOr<SequenceGrant> grant) {
              if (grant.ok()) keep(grant->sequence_id);
              ++answered;
            });
            break;
          }
          case 2:
            scheduler_.TruncateSequences("default", {id}, random() % 20, random() % 50,
                                         [&](std::vector<SequenceFailureValue>) { ++answered; });
            break;
          case 3:
            scheduler_.DeleteSequences("default", {id},
                                       [&](std::vector<SequenceFailureValue>) { ++answered; });
            break;
          default: {
            const auto info = scheduler_.GetSequence("default", id);
            const std::int32_t layer = static_cast<std::int32_t>(random() % 2);
            const auto index = static_cast<std::size_t>(layer);
            const std::int64_t position = info.ok() ? info->layer_tokens[index] : 0;
            const std::uint64_t epoch = info.ok() ? info->layer_epochs[index] : 0;
            const bool rollback = random() % 4 == 0;
            AttentionRequest request =
                MakeDecode(kShape, {MakeStep(id, rollback ? position / 2 : position,
                                             1 + static_cast<std::int32_t>(random() % 40),
                                             epoch + (rollback ? 1 : 0), layer)});
            request.on_done = RequestCompletion([&](AttentionResult) { ++answered; });
            const Ticket ticket = scheduler_.Submit(std::move(request));
            if (random() % 4 == 0) scheduler_.Cancel(ticket);
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // What is left expires by its lease; the timer thread does it.
  const auto give_up = clock_.Now() + std::chrono::seconds(60);
  while (!scheduler_.NoSequences() && clock_.Now() < give_up) std::this_thread::yield();
  StopDevice();
  EXPECT_EQ(answered, asked);
  EXPECT_TRUE(scheduler_.NoSequences());
  const auto snapshot = scheduler_.GetSnapshot();
  EXPECT_EQ(snapshot.pages_used, 0);
  EXPECT_EQ(snapshot.pages_shared, 0);
  EXPECT_EQ(snapshot.slabs_free, snapshot.slabs_total);
  EXPECT_EQ(snapshot.sequences_active, 0);
}

TEST_F(SchedulerConcurrencyTest, OneOfManyConcurrentCreationsWins) {
  for (int round = 0; round < 50; ++round) {
    CreateSequenceSpec spec = MakeSequenceSpec(kShape);
    spec.creation_key = std::string(16, static_cast<char>(round));
    std::vector<std::string> ids(4);
    std::vector<std::thread> threads;
    for (std::string& id : ids) {
      threads.emplace_back([&] { id = scheduler_.CreateSequence(spec)->sequence_id; });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& id : ids) EXPECT_EQ(id, ids[0]);
  }
  EXPECT_EQ(scheduler_.GetSnapshot().sequences_idle, 50);
}

TEST_F(SchedulerConcurrencyTest, TimerThreadEndsWhatIsDue) {
  CreateSequenceSpec spec = MakeSequenceSpec(kShape);
  spec.lease = milliseconds(5);
  ASSERT_TRUE(scheduler_.CreateSequence(spec).ok());
  const auto give_up = clock_.Now() + std::chrono::seconds(60);
  while (!scheduler_.NoSequences() && clock_.Now() < give_up) std::this_thread::yield();
  EXPECT_TRUE(scheduler_.NoSequences());
}

}  // namespace
}  // namespace attnd
