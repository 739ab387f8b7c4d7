// Places that calls hold while their message is on its way.
#include "server/arrival_places.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>

namespace attnd {
namespace {

constexpr Clock::TimePoint kStart{std::chrono::hours(1)};

TEST(ArrivalPlacesTest, ArrivingAndWaitingRequestsShareTheLimit) {
  ArrivalPlaces places(3);
  std::array<ArrivalPlace, 4> place;
  EXPECT_TRUE(places.Enter(place[0], /*waiting=*/0, kStart));
  EXPECT_TRUE(places.Enter(place[1], /*waiting=*/1, kStart));
  EXPECT_FALSE(places.Enter(place[2], /*waiting=*/1, kStart));
  EXPECT_TRUE(places.Enter(place[2], /*waiting=*/0, kStart));
  EXPECT_FALSE(places.Enter(place[3], /*waiting=*/0, kStart));
  EXPECT_EQ(places.held(), 3);
}

TEST(ArrivalPlacesTest, APlaceIsGivenBackOnce) {
  ArrivalPlaces places(1);
  ArrivalPlace first;
  ArrivalPlace second;
  places.Leave(second);  // never held
  ASSERT_TRUE(places.Enter(first, 0, kStart));
  places.Leave(first);
  places.Leave(first);
  EXPECT_EQ(places.held(), 0);
  ASSERT_TRUE(places.Enter(second, 0, kStart));
  EXPECT_FALSE(places.Enter(first, 0, kStart)) << "the refused one holds nothing";
  places.Leave(first);
  EXPECT_EQ(places.held(), 1);
}

TEST(ArrivalPlacesTest, SlowMessagesLendTheirPlaceWhenItIsNeeded) {
  ArrivalPlaces places(2);
  ArrivalPlace slow;
  ArrivalPlace quick;
  ArrivalPlace next;
  ASSERT_TRUE(places.Enter(slow, 0, kStart));
  const auto later = kStart + ArrivalPlaces::kPatience;
  ASSERT_TRUE(places.Enter(quick, 0, later));
  EXPECT_FALSE(places.Enter(next, 0, later)) << "not slow yet";
  EXPECT_TRUE(places.Enter(next, 0, later + std::chrono::milliseconds(1)));
  places.Leave(slow);  // has lent its place: the others keep theirs
  EXPECT_EQ(places.held(), 2);
}

}  // namespace
}  // namespace attnd
