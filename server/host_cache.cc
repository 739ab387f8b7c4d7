#include "server/host_cache.h"

#include <algorithm>

namespace attnd {

HostCache::HostCache(std::int64_t bytes, PagePool& pool)
    : pool_(pool), host_({nullptr, bytes, /*poison=*/false}) {}

std::int64_t HostCache::PageBytes(const Sequence& sequence) {
  return sequence.shape->page_layout.page_bytes();
}

void HostCache::NoteIdle(Sequence& sequence) {
  if (host_.pool_bytes() == 0 || sequence.idle_number != 0) return;
  sequence.idle_number = ++last_idle_number_;
  idle_.emplace(sequence.idle_number, &sequence);
}

void HostCache::NoteBusy(Sequence& sequence) {
  if (sequence.idle_number == 0) return;
  idle_.erase(sequence.idle_number);
  sequence.idle_number = 0;
}

HostCache::Moved HostCache::MoveOut(const Sequence& sequence, LayerState& layer) {
  const auto count = static_cast<std::int64_t>(layer.pages.size());
  if (count == 0 || sequence.reserve_pages > 0) return Moved::kStays;
  const bool shared = std::any_of(layer.pages.begin(), layer.pages.end(),
                                  [this](auto page) { return pool_.References(page) > 1; });
  if (shared) return Moved::kStays;
  const std::int64_t bytes = PageBytes(sequence);
  if (!host_.Allocate(host_.ClassOf(bytes), count, layer.host_pages)) return Moved::kHostFull;
  for (std::size_t i = 0; i < layer.pages.size(); ++i) {
    copies_.push_back({layer.pages[i], layer.host_pages[i], PageCopy::Kind::kToHost,
                       static_cast<std::int32_t>(bytes)});
    pool_.Release(layer.pages[i]);
  }
  layer.pages.clear();
  moved_out_bytes_ += count * bytes;
  return Moved::kYes;
}

HostCache::Moved HostCache::MoveOutUntil(Sequence& sequence, int page_class, std::int64_t count) {
  for (LayerState& layer : sequence.layers) {
    if (MoveOut(sequence, layer) == Moved::kHostFull) return Moved::kHostFull;
    if (pool_.Available(page_class) >= count) return Moved::kYes;
  }
  return Moved::kStays;
}

bool HostCache::MakeRoom(int page_class, std::int64_t count, std::uint64_t ticket,
                         const Sequence* keep) {
  if (pool_.Available(page_class) >= count) return true;
  if (count > pool_.Capacity(page_class)) return false;
  // Pages of the same size first: others help only where a whole slab becomes free.
  for (const bool same_class : {true, false}) {
    for (auto next = idle_.begin(); next != idle_.end();) {
      Sequence& sequence = *next->second;
      const bool named = ticket != 0 && std::any_of(sequence.layers.begin(), sequence.layers.end(),
                                                    [ticket](const LayerState& layer) {
                                                      return layer.last_ticket == ticket;
                                                    });
      if (named || &sequence == keep || (sequence.shape->page_class == page_class) != same_class) {
        ++next;
        continue;
      }
      switch (MoveOutUntil(sequence, page_class, count)) {
        case Moved::kYes:
          return true;
        case Moved::kHostFull:
          return false;
        case Moved::kStays:
          sequence.idle_number = 0;
          next = idle_.erase(next);
      }
    }
  }
  return false;
}

bool HostCache::BringBack(Sequence& sequence, LayerState& layer, std::uint64_t ticket) {
  if (layer.host_pages.empty()) return true;
  const int page_class = sequence.shape->page_class;
  const auto count = static_cast<std::int64_t>(layer.host_pages.size());
  if (!MakeRoom(page_class, count, ticket, &sequence)) return false;
  pool_.Allocate(page_class, count, layer.pages);
  const std::int64_t bytes = PageBytes(sequence);
  for (std::size_t i = 0; i < layer.host_pages.size(); ++i) {
    copies_.push_back({layer.host_pages[i], layer.pages[i], PageCopy::Kind::kFromHost,
                       static_cast<std::int32_t>(bytes)});
    host_.Release(layer.host_pages[i]);
  }
  layer.host_pages.clear();
  moved_in_bytes_ += count * bytes;
  return true;
}

void HostCache::Cut(const Sequence& sequence, LayerState& layer, std::int64_t length) {
  const std::int64_t page_tokens = sequence.shape->page_layout.page_tokens;
  const std::int64_t keep = std::max<std::int64_t>(
      0, (length + page_tokens - 1) / page_tokens - layer.applied.freed_tokens / page_tokens);
  while (static_cast<std::int64_t>(layer.host_pages.size()) > keep) {
    host_.Release(layer.host_pages.back());
    layer.host_pages.pop_back();
  }
}

void HostCache::Release(Sequence& sequence) {
  for (LayerState& layer : sequence.layers) {
    for (const std::uint32_t page : layer.host_pages) host_.Release(page);
    layer.host_pages.clear();
  }
}

void HostCache::TakeCopies(std::vector<PageCopy>& copies) {
  copies.insert(copies.end(), copies_.begin(), copies_.end());
  copies_.clear();
}

HostCache::Usage HostCache::usage() const {
  return {host_.pool_bytes(), host_.usage().bytes, moved_out_bytes_, moved_in_bytes_};
}

}  // namespace attnd
