// The pages of one layer: how many a step needs, putting them in place, cutting, freeing. Plain
// functions on Sequence and PagePool, under the scheduler's mutex.
//
// Copy on write: a page that another sequence holds too is never written; the step that appends
// into it takes a copy (PageCopy, done by the backend before the launch) and gives up its
// reference when its launch has ended, so that the original cannot change under the copy.
//
// Reservation: a sequence with reserve_pages > 0 holds in each layer, alone, at least that many
// pages: in the page table or in `reserve`.
#pragma once

#include <cstdint>
#include <vector>

#include "server/admission.h"
#include "server/page_pool.h"
#include "server/sequence_state.h"

namespace attnd {

// Pages that a step appending [position, position + num_tokens) may take at most, its copy of a
// shared page included. `steps_before`: other steps of the layer still wait; `fork_before`: a fork
// waits, so that the page at `position` will be shared.
struct StepPagesQuery {
  std::int64_t position = 0;
  std::int32_t num_tokens = 0;
  bool steps_before = false, fork_before = false;
};
std::int64_t PagesForStep(const Sequence& sequence, const LayerState& layer, const PagePool& pool,
                          const StepPagesQuery& query);

// Takes `count` pages for a step, from the layer's reserve first. All or nothing.
bool SetAside(const Sequence& sequence, LayerState& layer, PagePool& pool, std::int64_t count,
              std::vector<std::uint32_t>& pages);

// Cuts the layer to `position`, then makes room for `num_tokens` more from `provision` (from
// PagesForStep and SetAside). Unused pages and originals of copies are moved to `released`, for
// GiveBack once the launch has ended.
void PlaceStep(LayerState& layer, const Sequence& sequence, const PagePool& pool,
               std::int64_t position, std::int32_t num_tokens,
               std::vector<std::uint32_t>& provision, std::vector<PageCopy>& copies,
               std::vector<std::uint32_t>& released);

// Drops the pages past `length` into `released`.
void CutPages(LayerState& layer, const Sequence& sequence, std::int64_t length,
              std::vector<std::uint32_t>& released);

// Returns pages of the layer to its reserve, where it is short, else to the pool.
void GiveBack(const Sequence& sequence, LayerState& layer, PagePool& pool,
              std::vector<std::uint32_t>& pages);

// Frees the pages that have passed the window, given the layer's applied length.
void FreePassedPages(const Sequence& sequence, LayerState& layer, PagePool& pool,
                     const LayerRules& rules);

// Releases everything the sequence holds.
void ReleaseAllPages(Sequence& sequence, PagePool& pool);

}  // namespace attnd
