// The memory of all KV caches: 2 MiB slabs cut into pages of one size, with reference counts.
//
// A page is named as page tables name it: its byte offset in the pool / kernels::kPageUnitBytes.
// A slab belongs to one page size from its first page until its last page is released; then any
// size may take it. Fragmentation is therefore at most one partly used slab a size, plus what is
// live.
//
// Not thread-safe: the scheduler's mutex guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace attnd {

class PagePool {
 public:
  using Page = std::uint32_t;
  static constexpr std::int64_t kSlabBytes = std::int64_t{2} << 20;

  struct Options {
    std::byte* memory = nullptr;  // 2 MiB aligned on devices that care; may be null without poison
    std::int64_t bytes = 0;       // what lies beyond the last whole slab is not used
    // Fills released pages with NaN bytes, so that a stale read shows. Host memory only.
    bool poison = false;
  };
  explicit PagePool(const Options& options);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // The class of pages of `page_bytes` (a multiple of kPageUnitBytes, at most kSlabBytes).
  int ClassOf(std::int64_t page_bytes);

  // Appends `count` pages with one reference each, or none at all and false.
  bool Allocate(int page_class, std::int64_t count, std::vector<Page>& pages);
  // Pages that Allocate could give now; pages that an empty pool could give.
  std::int64_t Available(int page_class) const;
  std::int64_t Capacity(int page_class) const;

  void AddReference(Page page);
  void Release(Page page);
  int References(Page page) const;

  // Accounts pages that move into (negative: out of) a sequence's reserve.
  void CountReserved(int page_class, std::int64_t pages);

  struct Usage {
    std::int64_t slabs_total = 0, slabs_free = 0;
    std::int64_t pages = 0, shared_pages = 0;  // with one reference or more, two or more
    std::int64_t bytes = 0;                    // of those pages
    std::int64_t reserved_bytes = 0;           // of those, held in reserve
  };
  const Usage& usage() const { return usage_; }
  std::int64_t pool_bytes() const { return usage_.slabs_total * kSlabBytes; }

 private:
  static constexpr std::int32_t kNone = -1;
  struct Slab {
    std::int32_t page_class = kNone;
    std::int32_t position = kNone;  // in its class's `open` list
    std::vector<std::uint32_t> references;
    std::vector<std::uint16_t> free;  // page indexes; the next one is at the back
  };
  struct PageClass {
    std::int64_t page_bytes = 0;
    std::int32_t pages_per_slab = 0;
    std::int64_t free_pages = 0;     // in slabs of this class
    std::vector<std::int32_t> open;  // slabs with a free page
  };

  void OpenSlab(int page_class);
  void CloseSlab(std::int32_t slab_index);
  void RemoveFromOpen(std::int32_t slab_index);
  std::int32_t SlabOf(Page page) const;
  std::int32_t IndexInSlab(Page page, const PageClass& page_class) const;

  Options options_;
  std::vector<Slab> slabs_;
  std::vector<std::int32_t> free_slabs_;
  std::vector<PageClass> classes_;
  absl::flat_hash_map<std::int64_t, int> class_of_bytes_;
  Usage usage_;
};

}  // namespace attnd
