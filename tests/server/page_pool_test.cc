#include "server/page_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "kernels/attention_params.h"

namespace attnd {
namespace {

constexpr std::int64_t kSlabs = 4;
constexpr std::int64_t kBytes = kSlabs * PagePool::kSlabBytes;

class PagePoolTest : public testing::Test {
 protected:
  PagePoolTest() : memory_(kBytes), pool_({memory_.data(), kBytes, /*poison=*/true}) {}
  std::byte* At(PagePool::Page page) {
    return memory_.data() + std::int64_t{page} * kernels::kPageUnitBytes;
  }
  std::vector<std::byte> memory_;
  PagePool pool_;
};

TEST_F(PagePoolTest, PagesLieInThePoolAndDoNotOverlap) {
  const std::int64_t page_bytes = 3 * 4096;  // does not divide a slab
  const int page_class = pool_.ClassOf(page_bytes);
  const std::int64_t capacity = pool_.Capacity(page_class);
  EXPECT_EQ(capacity, kSlabs * (PagePool::kSlabBytes / page_bytes));
  std::vector<PagePool::Page> pages;
  ASSERT_TRUE(pool_.Allocate(page_class, capacity, pages));
  std::sort(pages.begin(), pages.end());
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const std::int64_t begin = std::int64_t{pages[i]} * kernels::kPageUnitBytes;
    EXPECT_LE(begin + page_bytes, kBytes);
    if (i > 0) {
      EXPECT_GE(begin, std::int64_t{pages[i - 1]} * kernels::kPageUnitBytes + page_bytes);
    }
    // A page never crosses its slab's end.
    EXPECT_EQ(begin / PagePool::kSlabBytes, (begin + page_bytes - 1) / PagePool::kSlabBytes);
  }
}

TEST_F(PagePoolTest, AllocationIsAllOrNothing) {
  const int page_class = pool_.ClassOf(PagePool::kSlabBytes);
  std::vector<PagePool::Page> pages;
  EXPECT_FALSE(pool_.Allocate(page_class, kSlabs + 1, pages));
  EXPECT_TRUE(pages.empty());
  EXPECT_EQ(pool_.usage().slabs_free, kSlabs);
  EXPECT_TRUE(pool_.Allocate(page_class, kSlabs, pages));
  EXPECT_FALSE(pool_.Allocate(page_class, 1, pages));
}

TEST_F(PagePoolTest, EmptiedSlabServesAnotherSize) {
  const int small = pool_.ClassOf(128);
  const int large = pool_.ClassOf(PagePool::kSlabBytes);
  std::vector<PagePool::Page> pages;
  ASSERT_TRUE(pool_.Allocate(small, pool_.Capacity(small), pages));
  EXPECT_EQ(pool_.Available(large), 0);
  for (const PagePool::Page page : pages) pool_.Release(page);
  EXPECT_EQ(pool_.Available(large), kSlabs);
  pages.clear();
  EXPECT_TRUE(pool_.Allocate(large, kSlabs, pages));
}

TEST_F(PagePoolTest, SharedPageLivesUntilItsLastReference) {
  const int page_class = pool_.ClassOf(4096);
  std::vector<PagePool::Page> pages;
  pool_.Allocate(page_class, 1, pages);
  pool_.AddReference(pages[0]);
  pool_.AddReference(pages[0]);
  EXPECT_EQ(pool_.References(pages[0]), 3);
  EXPECT_EQ(pool_.usage().shared_pages, 1);
  pool_.Release(pages[0]);
  EXPECT_EQ(pool_.usage().shared_pages, 1);
  pool_.Release(pages[0]);
  EXPECT_EQ(pool_.usage().shared_pages, 0);
  EXPECT_EQ(pool_.usage().pages, 1);
  pool_.Release(pages[0]);
  EXPECT_EQ(pool_.usage().pages, 0);
  EXPECT_EQ(pool_.usage().bytes, 0);
}

TEST_F(PagePoolTest, ReleasedPageIsPoisoned) {
  const int page_class = pool_.ClassOf(4096);
  std::vector<PagePool::Page> pages;
  pool_.Allocate(page_class, 2, pages);
  std::fill_n(At(pages[0]), 4096, std::byte{1});
  std::fill_n(At(pages[1]), 4096, std::byte{1});
  pool_.Release(pages[0]);
  EXPECT_TRUE(std::all_of(At(pages[0]), At(pages[0]) + 4096,
                          [](std::byte b) { return b == std::byte{0xFF}; }));
  EXPECT_TRUE(std::all_of(At(pages[1]), At(pages[1]) + 4096,
                          [](std::byte b) { return b == std::byte{1}; }));
}

TEST_F(PagePoolTest, RandomUseNeverHandsOutAPageTwice) {
  std::mt19937 random(7);
  const std::array classes = {pool_.ClassOf(128), pool_.ClassOf(4096), pool_.ClassOf(98'304)};
  std::vector<std::pair<PagePool::Page, int>> held;
  std::set<PagePool::Page> live;
  for (int i = 0; i < 20'000; ++i) {
    if (held.size() < 300 && random() % 2 == 0) {
      const int page_class = classes[random() % classes.size()];
      std::vector<PagePool::Page> pages;
      if (!pool_.Allocate(page_class, 1 + random() % 5, pages)) continue;
      for (const PagePool::Page page : pages) {
        ASSERT_TRUE(live.insert(page).second);
        held.emplace_back(page, page_class);
      }
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      live.erase(held.back().first);
      pool_.Release(held.back().first);
      held.pop_back();
    }
    ASSERT_EQ(pool_.usage().pages, static_cast<std::int64_t>(live.size()));
  }
  for (const auto& [page, page_class] : held) pool_.Release(page);
  EXPECT_EQ(pool_.usage().slabs_free, kSlabs);
}

TEST(PagePoolSizeTest, RestBeyondTheLastSlabIsNotUsed) {
  PagePool pool({nullptr, PagePool::kSlabBytes * 2 - 1, false});
  EXPECT_EQ(pool.usage().slabs_total, 1);
  EXPECT_EQ(pool.pool_bytes(), PagePool::kSlabBytes);
}

}  // namespace
}  // namespace attnd
