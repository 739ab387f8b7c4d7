#include "server/sequence_pages.h"

#include <algorithm>
#include <cassert>

namespace attnd {
namespace {

std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t PageTokens(const Sequence& sequence) {
  return sequence.shape->page_layout.page_tokens;
}

// Index into layer.pages of the page that holds `token`.
std::int64_t PageIndex(const LayerState& layer, const Sequence& sequence, std::int64_t token) {
  return (token - layer.applied.freed_tokens) / PageTokens(sequence);
}

std::int64_t HeldAlone(const LayerState& layer, const PagePool& pool) {
  return std::count_if(layer.pages.begin(), layer.pages.end(),
                       [&](std::uint32_t page) { return pool.References(page) == 1; });
}

}  // namespace

std::int64_t PagesForStep(const Sequence& sequence, const LayerState& layer, const PagePool& pool,
                          const StepPagesQuery& query) {
  const std::int64_t page_tokens = PageTokens(sequence);
  const std::int64_t first_new = CeilDiv(query.position, page_tokens);
  std::int64_t pages = CeilDiv(query.position + query.num_tokens, page_tokens) - first_new;
  const auto num_held = static_cast<std::int64_t>(layer.pages.size());
  if (query.position % page_tokens != 0) {
    const std::int64_t partial = PageIndex(layer, sequence, query.position);
    const bool shared =
        query.fork_before || (partial >= 0 && partial < num_held &&
                              pool.References(layer.pages[static_cast<std::size_t>(partial)]) > 1);
    if (shared) ++pages;
  }
  if (!query.steps_before && !query.fork_before) {
    // Pages that this step's own cut drops serve it again.
    const std::int64_t first_dropped =
        std::max<std::int64_t>(0, first_new - layer.applied.freed_tokens / page_tokens);
    for (std::int64_t i = first_dropped; i < num_held && pages > 0; ++i) {
      if (pool.References(layer.pages[static_cast<std::size_t>(i)]) == 1) --pages;
    }
  }
  return pages;
}

bool SetAside(const Sequence& sequence, LayerState& layer, PagePool& pool, std::int64_t count,
              std::vector<std::uint32_t>& pages) {
  const std::int64_t from_reserve =
      std::min<std::int64_t>(count, static_cast<std::int64_t>(layer.reserve.size()));
  if (!pool.Allocate(sequence.shape->page_class, count - from_reserve, pages)) return false;
  const auto first = layer.reserve.end() - from_reserve;
  pages.insert(pages.end(), first, layer.reserve.end());
  layer.reserve.erase(first, layer.reserve.end());
  pool.CountReserved(sequence.shape->page_class, -from_reserve);
  return true;
}

void PlaceStep(LayerState& layer, const Sequence& sequence, const PagePool& pool,
               std::int64_t position, std::int32_t num_tokens,
               std::vector<std::uint32_t>& provision, std::vector<PageCopy>& copies,
               std::vector<std::uint32_t>& released) {
  const std::int64_t page_tokens = PageTokens(sequence);
  const std::size_t first_dropped = released.size();
  CutPages(layer, sequence, position, released);
  // Dropped pages that nobody else holds come first into use again.
  const auto kept =
      std::partition(released.begin() + static_cast<std::ptrdiff_t>(first_dropped), released.end(),
                     [&](std::uint32_t page) { return pool.References(page) > 1; });
  provision.insert(provision.end(), kept, released.end());
  released.erase(kept, released.end());

  if (position % page_tokens != 0) {
    std::uint32_t& partial =
        layer.pages[static_cast<std::size_t>(PageIndex(layer, sequence, position))];
    if (pool.References(partial) > 1) {
      assert(!provision.empty());
      copies.push_back({partial, provision.back()});
      released.push_back(partial);
      partial = provision.back();
      provision.pop_back();
    }
  }
  const std::int64_t wanted =
      CeilDiv(position + num_tokens, page_tokens) - layer.applied.freed_tokens / page_tokens;
  const std::int64_t missing = wanted - static_cast<std::int64_t>(layer.pages.size());
  assert(missing <= static_cast<std::int64_t>(provision.size()));
  if (missing > 0) {
    const auto first = provision.end() - missing;
    layer.pages.insert(layer.pages.end(), first, provision.end());
    provision.erase(first, provision.end());
  }
  released.insert(released.end(), provision.begin(), provision.end());
  provision.clear();
}

void CutPages(LayerState& layer, const Sequence& sequence, std::int64_t length,
              std::vector<std::uint32_t>& released) {
  const std::int64_t page_tokens = PageTokens(sequence);
  const std::int64_t keep = std::max<std::int64_t>(
      0, CeilDiv(length, page_tokens) - layer.applied.freed_tokens / page_tokens);
  if (keep >= static_cast<std::int64_t>(layer.pages.size())) return;
  const auto first = layer.pages.begin() + keep;
  released.insert(released.end(), first, layer.pages.end());
  layer.pages.erase(first, layer.pages.end());
}

void GiveBack(const Sequence& sequence, LayerState& layer, PagePool& pool,
              std::vector<std::uint32_t>& pages) {
  std::int64_t short_of = 0;
  if (sequence.reserve_pages > 0 && !pages.empty()) {
    short_of = sequence.reserve_pages - HeldAlone(layer, pool) -
               static_cast<std::int64_t>(layer.reserve.size());
  }
  for (const std::uint32_t page : pages) {
    if (short_of > 0 && pool.References(page) == 1) {
      layer.reserve.push_back(page);
      pool.CountReserved(sequence.shape->page_class, 1);
      --short_of;
    } else {
      pool.Release(page);
    }
  }
  pages.clear();
}

void FreePassedPages(const Sequence& sequence, LayerState& layer, PagePool& pool,
                     const LayerRules& rules) {
  const std::int64_t passed = PassedTokens(rules, layer.applied.length);
  if (passed <= layer.applied.freed_tokens) return;
  const std::int64_t count =
      std::min<std::int64_t>((passed - layer.applied.freed_tokens) / PageTokens(sequence),
                             static_cast<std::int64_t>(layer.pages.size()));
  std::vector<std::uint32_t> freed(layer.pages.begin(), layer.pages.begin() + count);
  layer.pages.erase(layer.pages.begin(), layer.pages.begin() + count);
  layer.applied.freed_tokens += count * PageTokens(sequence);
  GiveBack(sequence, layer, pool, freed);
}

void ReleaseAllPages(Sequence& sequence, PagePool& pool) {
  for (LayerState& layer : sequence.layers) {
    for (const std::uint32_t page : layer.pages) pool.Release(page);
    for (const std::uint32_t page : layer.reserve) pool.Release(page);
    pool.CountReserved(sequence.shape->page_class,
                       -static_cast<std::int64_t>(layer.reserve.size()));
    layer.pages.clear();
    layer.reserve.clear();
  }
}

}  // namespace attnd
