#include "server/health_state.h"

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace attnd {
namespace {

using State = HealthState::State;

TEST(HealthStateTest, StartsNotServingWithAReason) {
  const HealthState health;
  EXPECT_EQ(health.Get(), State::kNotServing);
  EXPECT_EQ(health.GetReport().reason, "starting");
}

TEST(HealthStateTest, KeepsTheReasonOnlyWhileNotServing) {
  HealthState health;
  health.Set(State::kServing, "ignored");
  EXPECT_EQ(health.GetReport().reason, "");
  health.Set(State::kNotServing, "draining");
  EXPECT_EQ(health.GetReport().reason, "draining");
  health.Set(State::kNotServing, "device fault");
  EXPECT_EQ(health.GetReport().reason, "device fault");
}

TEST(HealthStateTest, TellsSubscribersTheCurrentStateAndThenChangesOnly) {
  HealthState health;
  std::vector<State> seen;
  health.Subscribe([&seen](State state) { seen.push_back(state); });
  EXPECT_EQ(seen, std::vector<State>{State::kNotServing});
  health.Set(State::kNotServing, "another reason");
  health.Set(State::kServing);
  health.Set(State::kServing);
  health.Set(State::kNotServing);
  EXPECT_EQ(seen, (std::vector<State>{State::kNotServing, State::kServing, State::kNotServing}));
}

TEST(HealthStateTest, CallsNobodyAfterUnsubscribe) {
  HealthState health;
  int first_calls = 0;
  int second_calls = 0;
  const int first = health.Subscribe([&first_calls](State) { ++first_calls; });
  const int second = health.Subscribe([&second_calls](State) { ++second_calls; });
  EXPECT_NE(first, second);
  health.Unsubscribe(first);
  health.Unsubscribe(first);
  health.Unsubscribe(12345);
  health.Set(State::kServing);
  EXPECT_EQ(first_calls, 1);
  EXPECT_EQ(second_calls, 2);
}

TEST(HealthStateTest, DestroysTheCallbackWithItsSubscription) {
  HealthState health;
  auto owned = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = owned;
  const int id = health.Subscribe([owned = std::move(owned)](State) {});
  EXPECT_FALSE(watched.expired());
  health.Unsubscribe(id);
  EXPECT_TRUE(watched.expired());
}

TEST(HealthStateTest, IsReadableInsideACallback) {
  HealthState health;
  State seen = State::kNotServing;
  health.Subscribe([&](State) { seen = health.Get(); });
  health.Set(State::kServing);
  EXPECT_EQ(seen, State::kServing);
}

TEST(HealthStateTest, NeverCallsARemovedSubscriberWhenSetsRace) {
  HealthState health;
  std::atomic<bool> stop{false};
  std::thread setter([&] {
    for (int i = 0; !stop.load(); ++i)
      health.Set(i % 2 == 0 ? State::kServing : State::kNotServing);
  });
  for (int round = 0; round < 200; ++round) {
    auto alive = std::make_shared<std::atomic<bool>>(true);
    const int id = health.Subscribe([alive](State) { EXPECT_TRUE(alive->load()); });
    health.Unsubscribe(id);
    alive->store(false);
  }
  stop.store(true);
  setter.join();
}

}  // namespace
}  // namespace attnd
