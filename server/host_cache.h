// Pages of idle sequences in host memory: where they go when the cache is full, and come back from
// with the sequence's next step (--host_cache_bytes).
//
// A layer is whole: all of its pages are in the pool (LayerState::pages) or all in host memory
// (LayerState::host_pages). Only layers of idle sequences move out, the longest idle one's first,
// and only pages that no other sequence shares. Those with a reservation stay.
//
// The copies themselves are made by the backend, before its next launch, in the order in which
// they were decided. So a page may be given away as soon as its copy has been decided: whoever
// writes to it does so in that launch or in a later one.
//
// Not thread-safe: the scheduler's mutex guards it.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/btree_map.h"
#include "server/batch.h"
#include "server/page_pool.h"
#include "server/sequence_state.h"

namespace attnd {

class HostCache {
 public:
  // `bytes` of host memory; 0: nothing ever moves. `pool` outlives this.
  HostCache(std::int64_t bytes, PagePool& pool);
  HostCache(const HostCache&) = delete;
  HostCache& operator=(const HostCache&) = delete;

  // No step of the sequence waits or runs any more; one does again, or the sequence has ended.
  void NoteIdle(Sequence& sequence);
  void NoteBusy(Sequence& sequence);

  // Whether the pool has `count` pages of the class free, moving out idle layers where it must:
  // not those of sequences that request `ticket` names (0: no request), nor any of `keep`.
  bool MakeRoom(int page_class, std::int64_t count, std::uint64_t ticket,
                const Sequence* keep = nullptr);
  // Brings a layer's pages into the pool. False, and nothing changed for the layer: no room.
  bool BringBack(Sequence& sequence, LayerState& layer, std::uint64_t ticket);

  // As CutPages and ReleaseAllPages, of what is in host memory.
  void Cut(const Sequence& sequence, LayerState& layer, std::int64_t length);
  void Release(Sequence& sequence);

  // Moves the copies that have been decided to the end of `copies`.
  void TakeCopies(std::vector<PageCopy>& copies);

  struct Usage {
    std::int64_t bytes = 0, used_bytes = 0;
    std::int64_t moved_out_bytes = 0, moved_in_bytes = 0;  // since the start
  };
  Usage usage() const;

 private:
  enum class Moved : std::uint8_t { kYes, kStays, kHostFull };
  Moved MoveOut(const Sequence& sequence, LayerState& layer);
  // Layer by layer, until the class has `count` pages. kStays: none is left that could move.
  Moved MoveOutUntil(Sequence& sequence, int page_class, std::int64_t count);
  static std::int64_t PageBytes(const Sequence& sequence);

  PagePool& pool_;
  PagePool host_;                                   // places only; the backend has the memory
  absl::btree_map<std::uint64_t, Sequence*> idle_;  // by Sequence::idle_number, the longest first
  std::uint64_t last_idle_number_ = 0;
  std::vector<PageCopy> copies_;
  std::int64_t moved_out_bytes_ = 0, moved_in_bytes_ = 0;
};

}  // namespace attnd
