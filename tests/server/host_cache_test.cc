// Which pages move, and in which order the backend is told to copy them. Places are numbers here;
// the memory behind them is a small model of pool and host that the copies are played on.
#include "server/host_cache.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <vector>

#include "server/sequence_pages.h"
#include "tests/support/engine_requests.h"

namespace attnd {
namespace {

constexpr std::int64_t kSlab = PagePool::kSlabBytes;
constexpr std::int32_t kLayers = 2;

class HostCacheTest : public ::testing::Test {
 protected:
  HostCacheTest() : pool_({nullptr, kSlab, false}) { SetHost(4 * kSlab); }
  void SetHost(std::int64_t bytes) { cache_ = std::make_unique<HostCache>(bytes, pool_); }

  // A page of it is `page_kib` large.
  std::shared_ptr<SequenceShape> Shape(std::int32_t page_kib) {
    auto shape = std::make_shared<SequenceShape>();
    shape->num_layers = kLayers;
    shape->page_layout = {kernels::DataType::kFp32, page_kib, 1, 128, 128};
    EXPECT_EQ(shape->page_layout.page_bytes(), page_kib * 1024);
    shape->page_class = pool_.ClassOf(shape->page_layout.page_bytes());
    return shape;
  }
  // Holds `pages` pages in each layer, with contents of its own.
  Sequence& Add(std::int64_t pages, std::int32_t page_kib = 64) {
    Sequence& sequence = *sequences_.emplace_back(std::make_unique<Sequence>());
    sequence.shape = Shape(page_kib);
    sequence.layers.resize(kLayers);
    for (LayerState& layer : sequence.layers) {
      EXPECT_TRUE(pool_.Allocate(sequence.shape->page_class, pages, layer.pages));
      layer.applied.length = pages * page_kib;
      for (const std::uint32_t page : layer.pages) in_pool_[page] = ++last_content_;
    }
    return sequence;
  }
  std::vector<int> ContentOf(const LayerState& layer) {
    std::vector<int> content;
    for (const std::uint32_t page : layer.pages) content.push_back(in_pool_[page]);
    for (const std::uint32_t page : layer.host_pages) content.push_back(on_host_[page]);
    return content;
  }
  // What the backend does before its next launch.
  void Launch() {
    std::vector<PageCopy> copies;
    cache_->TakeCopies(copies);
    for (const PageCopy& copy : copies) {
      if (copy.kind == PageCopy::Kind::kToHost) {
        on_host_[copy.to] = in_pool_[copy.from];
      } else {
        in_pool_[copy.to] = on_host_[copy.from];
      }
    }
  }
  bool MakeRoom(const Sequence& like, std::int64_t pages, std::uint64_t ticket = 0) {
    return cache_->MakeRoom(like.shape->page_class, pages, ticket);
  }
  static bool Away(const Sequence& sequence) {
    bool away = true;
    for (const LayerState& layer : sequence.layers) away = away && layer.pages.empty();
    return away;
  }

  PagePool pool_;
  std::unique_ptr<HostCache> cache_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::map<std::uint32_t, int> in_pool_, on_host_;
  int last_content_ = 0;
};

TEST_F(HostCacheTest, TheLongestIdleOneMovesAndNoMoreThanNeeded) {
  Sequence& first = Add(8);
  Sequence& second = Add(8);  // 32 pages of 64 KiB: full
  cache_->NoteIdle(second);
  cache_->NoteIdle(first);
  EXPECT_TRUE(MakeRoom(first, 8));
  EXPECT_TRUE(second.layers[0].pages.empty());
  EXPECT_EQ(second.layers[0].host_pages.size(), 8U);
  EXPECT_EQ(second.layers[1].pages.size(), 8U);
  EXPECT_TRUE(MakeRoom(first, 9));
  EXPECT_TRUE(Away(second));
  EXPECT_EQ(first.layers[0].pages.size(), 8U);
  EXPECT_TRUE(MakeRoom(first, 17));
  EXPECT_TRUE(first.layers[0].pages.empty());
  EXPECT_EQ(cache_->usage().moved_out_bytes, 24 * 64 * 1024);
}

TEST_F(HostCacheTest, BusyNamedReservedAndSharedOnesStay) {
  Sequence& busy = Add(4);
  Sequence& named = Add(4);
  Sequence& reserved = Add(4);
  Sequence& shared = Add(4);
  for (Sequence* sequence : {&busy, &named, &reserved, &shared}) cache_->NoteIdle(*sequence);
  cache_->NoteBusy(busy);
  named.layers[1].last_ticket = 7;
  reserved.reserve_pages = 1;
  pool_.AddReference(shared.layers[0].pages[2]);
  EXPECT_FALSE(MakeRoom(busy, 5, 7));
  EXPECT_EQ(pool_.Available(busy.shape->page_class), 4);
  EXPECT_EQ(shared.layers[1].host_pages.size(), 4U);  // its other layer was nobody else's
  EXPECT_TRUE(MakeRoom(busy, 5, 8));
  EXPECT_FALSE(named.layers[0].host_pages.empty());
  EXPECT_EQ(busy.layers[0].pages.size() + reserved.layers[0].pages.size(), 8U);
}

// The page is given away before its copy has been made: the order of the copies keeps it whole.
TEST_F(HostCacheTest, ContentsSurviveAnyNumberOfMovesBetweenTwoLaunches) {
  Sequence& first = Add(16);
  const std::vector<int> before[] = {ContentOf(first.layers[0]), ContentOf(first.layers[1])};
  cache_->NoteIdle(first);
  ASSERT_TRUE(MakeRoom(first, 32));
  std::vector<std::uint32_t> taken;
  ASSERT_TRUE(pool_.Allocate(first.shape->page_class, 16, taken));
  ASSERT_TRUE(cache_->BringBack(first, first.layers[1], 0));
  for (const std::uint32_t page : taken) pool_.Release(page);
  ASSERT_TRUE(cache_->BringBack(first, first.layers[0], 0));
  cache_->NoteIdle(first);
  ASSERT_TRUE(MakeRoom(first, 32));  // away again, to places that were just left
  ASSERT_TRUE(cache_->BringBack(first, first.layers[0], 0));
  Launch();
  EXPECT_EQ(ContentOf(first.layers[0]), before[0]);
  EXPECT_EQ(ContentOf(first.layers[1]), before[1]);
  EXPECT_TRUE(first.layers[0].host_pages.empty());
  EXPECT_TRUE(first.layers[1].pages.empty());
}

TEST_F(HostCacheTest, WhatDoesNotFitComesBackLaterUnharmed) {
  Sequence& first = Add(16);
  const std::vector<int> before = ContentOf(first.layers[0]);
  cache_->NoteIdle(first);
  ASSERT_TRUE(MakeRoom(first, 32));
  Launch();
  Sequence& busy = Add(16);
  EXPECT_FALSE(cache_->BringBack(first, first.layers[0], 0));
  EXPECT_EQ(first.layers[0].host_pages.size(), 16U);
  EXPECT_TRUE(first.layers[0].pages.empty());
  ReleaseAllPages(busy, pool_);
  EXPECT_TRUE(cache_->BringBack(first, first.layers[0], 0));
  Launch();
  EXPECT_EQ(ContentOf(first.layers[0]), before);
}

TEST_F(HostCacheTest, AFullHostMemoryStopsTheMovesAndForgetsNobody) {
  SetHost(kSlab / 2);  // no whole slab
  Sequence& first = Add(16);
  cache_->NoteIdle(first);
  EXPECT_FALSE(MakeRoom(first, 1));
  SetHost(kSlab);
  first.idle_number = 0;
  cache_->NoteIdle(first);
  Sequence* const other = &first;
  EXPECT_TRUE(MakeRoom(first, 16));
  EXPECT_TRUE(MakeRoom(first, 32));
  EXPECT_TRUE(Away(*other));
  Sequence& second = Add(16);
  cache_->NoteIdle(second);
  EXPECT_FALSE(MakeRoom(second, 1));  // the host is full
  cache_->Release(first);
  EXPECT_TRUE(MakeRoom(second, 1));  // it still knows who is idle
}

TEST_F(HostCacheTest, OtherPageSizesMoveWhereAWholeSlabBecomesFree) {
  Sequence& small = Add(8, 32);  // half of the slab
  Sequence& large = *sequences_.emplace_back(std::make_unique<Sequence>());
  large.shape = Shape(128);
  cache_->NoteIdle(small);
  EXPECT_TRUE(MakeRoom(large, 16));
  EXPECT_TRUE(Away(small));
  EXPECT_FALSE(MakeRoom(large, 17));  // more than the pool has
}

TEST_F(HostCacheTest, CutsAndEndingsFreeHostMemory) {
  Sequence& first = Add(16);
  cache_->NoteIdle(first);
  ASSERT_TRUE(MakeRoom(first, 32));
  cache_->Cut(first, first.layers[0], 3 * 64 + 1);
  EXPECT_EQ(first.layers[0].host_pages.size(), 4U);
  EXPECT_EQ(cache_->usage().used_bytes, 20 * 64 * 1024);
  cache_->Release(first);
  EXPECT_EQ(cache_->usage().used_bytes, 0);
  EXPECT_TRUE(first.layers[1].host_pages.empty());
}

TEST_F(HostCacheTest, WithoutHostMemoryNothingMoves) {
  SetHost(0);
  Sequence& first = Add(16);
  cache_->NoteIdle(first);
  EXPECT_FALSE(MakeRoom(first, 1));
  EXPECT_EQ(first.idle_number, 0U);
  EXPECT_FALSE(Away(first));
}

}  // namespace
}  // namespace attnd
