// Places that calls hold while their message is on its way.
#include "server/arrival_places.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <deque>

namespace attnd {
namespace {

constexpr Clock::TimePoint kStart{std::chrono::hours(1)};

// Calls that enter until one is refused.
class Crowd {
 public:
  explicit Crowd(ArrivalPlaces& places) : places_(places) {}
  std::int64_t Enter(std::int64_t waiting, Clock::TimePoint now = kStart) {
    std::int64_t entered = 0;
    while (places_.Enter(calls_.emplace_back(), waiting, now)) ++entered;
    return entered;
  }

 private:
  ArrivalPlaces& places_;
  std::deque<ArrivalPlace> calls_;
};

TEST(ArrivalPlacesTest, ArrivingAndWaitingRequestsShareTheLimit) {
  ArrivalPlaces places(10);
  Crowd crowd(places);
  EXPECT_EQ(crowd.Enter(/*waiting=*/7), 3 + ArrivalPlaces::kBeyondLimit);
  EXPECT_EQ(crowd.Enter(/*waiting=*/5), 2);
  EXPECT_EQ(crowd.Enter(/*waiting=*/0), 5);
  EXPECT_EQ(places.held(), 10 + ArrivalPlaces::kBeyondLimit);
}

// Also where nothing is on its way.
TEST(ArrivalPlacesTest, AFullQueueRefusesEverybody) {
  ArrivalPlaces places(2);
  Crowd crowd(places);
  EXPECT_EQ(crowd.Enter(/*waiting=*/2), 0);
  EXPECT_EQ(crowd.Enter(/*waiting=*/3), 0);
  EXPECT_EQ(crowd.Enter(/*waiting=*/1), 1 + ArrivalPlaces::kBeyondLimit);
}

TEST(ArrivalPlacesTest, APlaceIsGivenBackOnce) {
  ArrivalPlaces places(1);
  ArrivalPlace first;
  ArrivalPlace refused;
  places.Leave(first);  // never held
  ASSERT_TRUE(places.Enter(first, 0, kStart));
  Crowd others(places);
  EXPECT_EQ(others.Enter(0), ArrivalPlaces::kBeyondLimit);
  EXPECT_FALSE(places.Enter(refused, 0, kStart));
  places.Leave(refused);  // holds nothing
  EXPECT_EQ(places.held(), 1 + ArrivalPlaces::kBeyondLimit);
  places.Leave(first);
  places.Leave(first);
  EXPECT_EQ(places.held(), ArrivalPlaces::kBeyondLimit);
  EXPECT_TRUE(places.Enter(refused, 0, kStart));
}

TEST(ArrivalPlacesTest, SlowMessagesLendTheirPlaceWhenItIsNeeded) {
  ArrivalPlaces places(2);
  ArrivalPlace slow;
  ArrivalPlace next;
  ASSERT_TRUE(places.Enter(slow, 0, kStart));
  const auto later = kStart + ArrivalPlaces::kPatience;
  Crowd quick(places);
  EXPECT_EQ(quick.Enter(0, later), 1 + ArrivalPlaces::kBeyondLimit) << "not slow yet";
  EXPECT_TRUE(places.Enter(next, 0, later + std::chrono::milliseconds(1)));
  places.Leave(slow);  // has lent its place: the others keep theirs
  EXPECT_EQ(places.held(), 2 + ArrivalPlaces::kBeyondLimit);
}

}  // namespace
}  // namespace attnd
