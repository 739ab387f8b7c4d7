#include "loadtest/prefix_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace attnd::loadtest {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Blocks = std::vector<std::int64_t>;

TEST(PrefixStoreTest, FindsTheLongestPrefix) {
  PrefixStore store(100);
  store.Add("short", Blocks{0, 1});
  store.Add("long", Blocks{0, 1, 2, 3});
  const auto match = store.Find(Blocks{0, 1, 2, 9});
  ASSERT_TRUE(match.has_value());
  EXPECT_EQ(match->sequence_id, "long");
  EXPECT_EQ(match->num_blocks, 3U);
  EXPECT_EQ(store.Find(Blocks{0, 7})->num_blocks, 1U);
}

TEST(PrefixStoreTest, FindsNothingThatDoesNotBeginAlike) {
  PrefixStore store(100);
  EXPECT_FALSE(store.Find(Blocks{0}).has_value());
  store.Add("a", Blocks{0, 1, 2});
  EXPECT_FALSE(store.Find(Blocks{}).has_value());
  EXPECT_FALSE(store.Find(Blocks{5}).has_value());
  EXPECT_FALSE(store.Find(Blocks{1, 2}).has_value()) << "the block has another place";
  EXPECT_FALSE(store.Find(Blocks{8, 1}).has_value()) << "another prompt before the same block";
}

TEST(PrefixStoreTest, MakesRoomByTheLeastRecentlyUsed) {
  PrefixStore store(4);
  EXPECT_THAT(store.Add("a", Blocks{1, 2}), IsEmpty());
  EXPECT_THAT(store.Add("b", Blocks{3, 4}), IsEmpty());
  store.Find(Blocks{1, 2});
  EXPECT_THAT(store.Add("c", Blocks{5, 6}), ElementsAre("b"));
  EXPECT_FALSE(store.Find(Blocks{3, 4}).has_value());
  EXPECT_EQ(store.Find(Blocks{1, 2})->sequence_id, "a");
}

TEST(PrefixStoreTest, ASequenceLargerThanTheStoreGoesAtOnce) {
  PrefixStore store(2);
  store.Add("a", Blocks{9});
  EXPECT_THAT(store.Add("b", Blocks{1, 2, 3}), ElementsAre("a", "b"));
  EXPECT_FALSE(store.Find(Blocks{1}).has_value());
}

TEST(PrefixStoreTest, WhatIsForgottenIsNotFound) {
  PrefixStore store(10);
  store.Add("a", Blocks{1, 2});
  store.Add("b", Blocks{1, 2, 3});
  store.Forget("b");
  store.Forget("b");
  EXPECT_FALSE(store.Find(Blocks{1, 2, 3}).has_value() &&
               store.Find(Blocks{1, 2, 3})->sequence_id == "b");
  EXPECT_THAT(store.TakeAll(), ElementsAre("a"));
}

TEST(PrefixStoreTest, TakesAll) {
  PrefixStore store(10);
  store.Add("a", Blocks{1});
  store.Add("b", Blocks{2});
  EXPECT_THAT(store.TakeAll(), UnorderedElementsAre("a", "b"));
  EXPECT_THAT(store.TakeAll(), IsEmpty());
  EXPECT_FALSE(store.Find(Blocks{1}).has_value());
}

}  // namespace
}  // namespace attnd::loadtest
