#include "server/page_pool.h"

#include <cassert>
#include <cstring>

#include "kernels/attention_params.h"

namespace attnd {
namespace {

constexpr std::int64_t kUnitsPerSlab = PagePool::kSlabBytes / kernels::kPageUnitBytes;
// All ones is a NaN in FP32, FP16 and BF16.
constexpr int kPoisonByte = 0xFF;

}  // namespace

PagePool::PagePool(const Options& options) : options_(options) {
  const std::int64_t slabs = options.bytes / kSlabBytes;
  slabs_.resize(static_cast<std::size_t>(slabs));
  free_slabs_.reserve(slabs_.size());
  // Low addresses first: a lightly used pool stays compact.
  for (std::int64_t i = slabs - 1; i >= 0; --i) free_slabs_.push_back(static_cast<std::int32_t>(i));
  usage_.slabs_total = usage_.slabs_free = slabs;
}

int PagePool::ClassOf(std::int64_t page_bytes) {
  assert(page_bytes > 0 && page_bytes <= kSlabBytes && page_bytes % kernels::kPageUnitBytes == 0);
  const auto [entry, inserted] =
      class_of_bytes_.try_emplace(page_bytes, static_cast<int>(classes_.size()));
  if (inserted) {
    PageClass& added = classes_.emplace_back();
    added.page_bytes = page_bytes;
    added.pages_per_slab = static_cast<std::int32_t>(kSlabBytes / page_bytes);
  }
  return entry->second;
}

std::int64_t PagePool::Available(int page_class) const {
  const PageClass& c = classes_[static_cast<std::size_t>(page_class)];
  return c.free_pages + static_cast<std::int64_t>(free_slabs_.size()) * c.pages_per_slab;
}

std::int64_t PagePool::Capacity(int page_class) const {
  return usage_.slabs_total * classes_[static_cast<std::size_t>(page_class)].pages_per_slab;
}

bool PagePool::Allocate(int page_class, std::int64_t count, std::vector<Page>& pages) {
  if (Available(page_class) < count) return false;
  PageClass& c = classes_[static_cast<std::size_t>(page_class)];
  for (std::int64_t i = 0; i < count; ++i) {
    if (c.open.empty()) OpenSlab(page_class);
    const std::int32_t slab_index = c.open.back();
    Slab& slab = slabs_[static_cast<std::size_t>(slab_index)];
    const std::uint16_t index = slab.free.back();
    slab.free.pop_back();
    slab.references[index] = 1;
    --c.free_pages;
    if (slab.free.empty()) RemoveFromOpen(slab_index);
    pages.push_back(static_cast<Page>(slab_index * kUnitsPerSlab +
                                      index * (c.page_bytes / kernels::kPageUnitBytes)));
  }
  usage_.pages += count;
  usage_.bytes += count * c.page_bytes;
  return true;
}

void PagePool::AddReference(Page page) {
  Slab& slab = slabs_[static_cast<std::size_t>(SlabOf(page))];
  const PageClass& c = classes_[static_cast<std::size_t>(slab.page_class)];
  if (++slab.references[static_cast<std::size_t>(IndexInSlab(page, c))] == 2) {
    ++usage_.shared_pages;
  }
}

void PagePool::CountReserved(int page_class, std::int64_t pages) {
  usage_.reserved_bytes += pages * classes_[static_cast<std::size_t>(page_class)].page_bytes;
}

int PagePool::References(Page page) const {
  const Slab& slab = slabs_[static_cast<std::size_t>(SlabOf(page))];
  const PageClass& c = classes_[static_cast<std::size_t>(slab.page_class)];
  return static_cast<int>(slab.references[static_cast<std::size_t>(IndexInSlab(page, c))]);
}

void PagePool::Release(Page page) {
  const std::int32_t slab_index = SlabOf(page);
  Slab& slab = slabs_[static_cast<std::size_t>(slab_index)];
  PageClass& c = classes_[static_cast<std::size_t>(slab.page_class)];
  const std::int32_t index = IndexInSlab(page, c);
  std::uint32_t& references = slab.references[static_cast<std::size_t>(index)];
  assert(references > 0);
  if (--references > 0) {
    if (references == 1) --usage_.shared_pages;
    return;
  }
  if (options_.poison) {
    std::memset(options_.memory + std::int64_t{page} * kernels::kPageUnitBytes, kPoisonByte,
                static_cast<std::size_t>(c.page_bytes));
  }
  --usage_.pages;
  usage_.bytes -= c.page_bytes;
  ++c.free_pages;
  slab.free.push_back(static_cast<std::uint16_t>(index));
  if (slab.free.size() == 1) {
    slab.position = static_cast<std::int32_t>(c.open.size());
    c.open.push_back(slab_index);
  }
  if (static_cast<std::int32_t>(slab.free.size()) == c.pages_per_slab) CloseSlab(slab_index);
}

void PagePool::OpenSlab(int page_class) {
  PageClass& c = classes_[static_cast<std::size_t>(page_class)];
  const std::int32_t slab_index = free_slabs_.back();
  free_slabs_.pop_back();
  --usage_.slabs_free;
  Slab& slab = slabs_[static_cast<std::size_t>(slab_index)];
  slab.page_class = page_class;
  slab.references.assign(static_cast<std::size_t>(c.pages_per_slab), 0);
  slab.free.clear();
  for (std::int32_t i = c.pages_per_slab - 1; i >= 0; --i) {
    slab.free.push_back(static_cast<std::uint16_t>(i));
  }
  slab.position = static_cast<std::int32_t>(c.open.size());
  c.open.push_back(slab_index);
  c.free_pages += c.pages_per_slab;
}

void PagePool::CloseSlab(std::int32_t slab_index) {
  Slab& slab = slabs_[static_cast<std::size_t>(slab_index)];
  PageClass& c = classes_[static_cast<std::size_t>(slab.page_class)];
  RemoveFromOpen(slab_index);
  c.free_pages -= c.pages_per_slab;
  slab.page_class = kNone;
  free_slabs_.push_back(slab_index);
  ++usage_.slabs_free;
}

void PagePool::RemoveFromOpen(std::int32_t slab_index) {
  Slab& slab = slabs_[static_cast<std::size_t>(slab_index)];
  PageClass& c = classes_[static_cast<std::size_t>(slab.page_class)];
  const std::int32_t last = c.open.back();
  c.open[static_cast<std::size_t>(slab.position)] = last;
  slabs_[static_cast<std::size_t>(last)].position = slab.position;
  c.open.pop_back();
  slab.position = kNone;
}

std::int32_t PagePool::SlabOf(Page page) const {
  return static_cast<std::int32_t>(page / kUnitsPerSlab);
}

std::int32_t PagePool::IndexInSlab(Page page, const PageClass& page_class) const {
  return static_cast<std::int32_t>(page % kUnitsPerSlab /
                                   (page_class.page_bytes / kernels::kPageUnitBytes));
}

}  // namespace attnd
