// Threads that stand for gRPC's: reactions that overlap, and what the one that meets another does.
#include "server/spare_poller.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "tests/support/await.h"

namespace attnd {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::Await;

SparePoller::Load NothingFree() { return {0, 1e9, 2}; }

// Two threads that meet somebody in every reaction.
class TwoPollers {
 public:
  explicit TwoPollers(SparePoller& spare) {
    for (std::thread& thread : threads_) {
      thread = std::thread([this, &spare] {
        while (!stop_) {
          const auto begin = steady_clock::now();
          const SparePoller::Reaction outer(spare);
          { const SparePoller::Reaction inner(spare); }
          ++reactions_;
          const std::int64_t took_ms = (steady_clock::now() - begin) / milliseconds(1);
          std::int64_t longest = longest_ms_;
          while (longest < took_ms && !longest_ms_.compare_exchange_weak(longest, took_ms)) {
          }
        }
      });
    }
  }
  ~TwoPollers() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  std::int64_t reactions() const { return reactions_; }
  std::int64_t longest_ms() const { return longest_ms_; }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<std::int64_t> reactions_{0}, longest_ms_{0};
  std::thread threads_[2];
};

TEST(SparePollerTest, OfTwoThreadsThatMeetOneRestsAndOneGoesOn) {
  SparePoller spare(2, NothingFree);
  {
    TwoPollers pollers(spare);
    ASSERT_TRUE(Await([&] { return spare.resting() == 1; }));
    const std::int64_t before = pollers.reactions();
    int resting = 0;
    for (int i = 0; i < 100; ++i) {
      std::this_thread::sleep_for(milliseconds(1));
      resting += spare.resting();
    }
    EXPECT_GT(resting, 50) << "of 100 times that it was asked";
    EXPECT_GT(pollers.reactions(), before);
  }
  EXPECT_EQ(spare.resting(), 0) << "a thread whose fellow has stopped goes back";
}

// The stream in whose reaction it rests may be at its end.
TEST(SparePollerTest, ARestEndsThoughOtherStreamsStayBusy) {
  SparePoller spare(2, NothingFree);
  TwoPollers pollers(spare);
  std::this_thread::sleep_for(milliseconds(1500));
  EXPECT_GT(pollers.longest_ms(), 2) << "a rest";
  EXPECT_LT(pollers.longest_ms(), 1000) << "a tenth of a second, and what the machine adds";
}

TEST(SparePollerTest, AThreadThatMeetsNobodyDoesNotRest) {
  SparePoller spare(2, NothingFree);
  const auto begin = steady_clock::now();
  for (int i = 0; i < 1000; ++i) const SparePoller::Reaction reaction(spare);
  EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(1)) << "a rest is 2 ms";
}

TEST(SparePollerTest, TheOnlyThreadNeverRests) {
  SparePoller spare(1, NothingFree);
  const auto begin = steady_clock::now();
  const SparePoller::Reaction outer(spare);
  for (int i = 0; i < 1000; ++i) const SparePoller::Reaction inner(spare);
  EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(1)) << "a rest is 2 ms";
}

TEST(SparePollerTest, AFreeProcessorEndsTheRestOfAThreadThatIsNeeded) {
  std::atomic<int> asked{0};
  SparePoller spare(2, [&asked] {
    const double used = ++asked;  // a second of processor from one time to the next
    return SparePoller::Load{used, 1, 2};
  });
  TwoPollers pollers(spare);
  ASSERT_TRUE(Await([&] { return spare.resting() == 1; }));
  EXPECT_TRUE(Await([&] {
    for (int i = 0; i < 50; ++i) {
      if (spare.resting() != 0) return false;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return true;
  })) << "and it does not rest again at once";
}

TEST(SparePollerTest, TheMachineTellsItsLoad) {
  const SparePoller::Load before = SparePoller::CurrentLoad();
  EXPECT_GE(before.processors, 1);
  EXPECT_GE(before.runnable, 0);
  EXPECT_LT(before.runnable, 1e6) << "/proc/loadavg was read";
  const auto end = steady_clock::now() + milliseconds(50);
  while (steady_clock::now() < end) {
  }
  EXPECT_GT(SparePoller::CurrentLoad().process_seconds, before.process_seconds);
  EXPECT_GE(SparePoller::NumPollers(), 2);
}

}  // namespace
}  // namespace attnd
