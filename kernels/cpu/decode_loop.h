// The tile loop of the decode targets: walks the keys of a segment, blocks of query rows inside.
// Part of decode_<target>.cc (decode_tile.h).
#pragma once

#include <algorithm>

#include "kernels/cpu/decode_softmax.h"

namespace attnd::kernels {
namespace {

// One head ahead is 32 KiB in BF16 at d 128: about as long as memory takes when every thread reads.
// Two take 8 % less of a thread's time than one, three and more no less than two.
constexpr int kHeadsAhead = 2;

template <class Arithmetic>
class SegmentLoop {
 public:
  using Element = typename Arithmetic::Element;
  using Probability = typename Arithmetic::Probability;

  SegmentLoop(const DecodeSegment& segment, DecodeScratch& scratch)
      : segment_(segment),
        scratch_(scratch),
        rows_(*segment.params, *segment.sequence, segment.kv_head_begin),
        head_dim_(segment.params->head_dim),
        padded_dim_(PaddedHeadDim(head_dim_)),
        group_(segment.params->num_heads / segment.params->num_kv_heads),
        num_heads_(segment.kv_head_end - segment.kv_head_begin),
        rows_per_head_(segment.rows_per_head()),
        copy_rows_(!rows_.paged() && head_dim_ != padded_dim_) {}

  void Run() {
    PackQueries();
    Reset();
    const KeyRange& keys = segment_.keys;
    if (keys.size() > 0) {
      // Lane 0 of a tile stands at a multiple of the tile on the position axis.
      const std::int64_t position = segment_.sequence->key_position + keys.begin;
      const std::int64_t misplaced =
          ((position % kDecodeTileKeys) + kDecodeTileKeys) % kDecodeTileKeys;
      RunTiles(keys.begin - misplaced);
    }
    for (int state = 0; state < num_states(); ++state) {
      Arithmetic::Finish(scratch_.accumulator + state * padded_dim_, padded_dim_);
    }
  }

 private:
  // One state a row and head: head by head, rows inside.
  int num_states() const { return num_heads_ * rows_per_head_; }

  RowTransform Place(int state) const {
    const std::int64_t row = segment_.row_begin + state % rows_per_head_;
    const int kv_head = segment_.kv_head_begin + state / rows_per_head_;
    return {segment_.sequence, row / group_, kv_head * group_ + static_cast<int>(row % group_)};
  }

  void PackQueries() {
    const AttentionSequence& sequence = *segment_.sequence;
    alignas(64) std::byte padded[kMaxHeadDim * sizeof(Element)] = {};
    for (int state = 0; state < num_states(); ++state) {
      const RowTransform place = Place(state);
      const auto* q = static_cast<const Element*>(sequence.q) +
                      place.token * sequence.q_token_stride + place.head * sequence.q_head_stride;
      std::memcpy(padded, q, head_dim_ * sizeof(Element));
      Arithmetic::PackQuery(padded, padded_dim_,
                            scratch_.q + state * Arithmetic::QueryRowBytes(padded_dim_));
    }
  }

  void Reset() {
    for (int state = 0; state < num_states(); ++state) {
      scratch_.row_max[state] = MinusInfinity();
      scratch_.row_sum[state] = 0;
    }
    for (int row = 0; row < rows_per_head_; ++row) {
      visible_[row] = VisibleKeys(*segment_.sequence, (segment_.row_begin + row) / group_);
    }
    std::memset(scratch_.accumulator, 0, num_states() * padded_dim_ * sizeof(float));
  }

  // All heads of a tile before the next tile: a page's heads follow each other in memory, so the
  // reads stay sequential inside it. Head by head instead, 4 KiB out of every 64 KiB page, a
  // thread reads a quarter less (20 against 26 GB/s) however far ahead it prefetches: every block
  // costs a page table walk of its own.
  void RunTiles(std::int64_t tile_key) {
    TileRows tiles[2];
    FillTile(tile_key, tiles[0]);
    for (int head = 0; head < std::min(kHeadsAhead, num_heads_); ++head) {
      PrefetchTile(View(tiles[0], head));
    }
    for (int current = 0; tile_key < segment_.keys.end; current ^= 1) {
      const std::int64_t next_key = tile_key + kDecodeTileKeys;
      const bool has_next = next_key < segment_.keys.end;
      if (has_next) FillTile(next_key, tiles[current ^ 1]);
      for (int head = 0; head < num_heads_; ++head) {
        // Prefetched while this head computes: the head after the next one, on from the last head
        // into the next tile.
        const int ahead = head + kHeadsAhead;
        const bool wraps = ahead >= num_heads_;
        const TileView next = View(tiles[wraps ? current ^ 1 : current], ahead % num_heads_);
        const bool prefetch = !wraps || has_next;
        RunHead(head, tile_key, View(tiles[current], head), prefetch ? &next : nullptr);
      }
      tile_key = next_key;
    }
  }

  // The first tiles of a segment: nothing computes meanwhile.
  void PrefetchTile(const TileView& tile) const {
    const auto row_bytes = static_cast<int>(padded_dim_ * sizeof(Element));
    for (int lane = tile.first(); lane < tile.last(); ++lane)
      PrefetchRow(tile.Key(lane), row_bytes);
    for (int lane = tile.first(); lane < tile.last(); ++lane) {
      PrefetchRow(tile.Value(lane), row_bytes);
    }
  }

  TileView View(const TileRows& tile, int head) const {
    return {&tile, head * rows_.k_head_bytes(), head * rows_.v_head_bytes()};
  }

  void RunHead(int head, std::int64_t tile_key, const TileView& tile, const TileView* next) {
    TileRows copy;
    TileView view = tile;
    if (copy_rows_) {
      CopyRows(tile, copy);
      view = {&copy, 0, 0};
    }
    for (int row = 0; row < rows_per_head_; row += kBlockRows) {
      // Only the first block of rows waits for memory.
      RunBlock(head, row, tile_key, view, row == 0 ? next : nullptr);
    }
  }

  void RunBlock(int head, int row, std::int64_t tile_key, const TileView& tile,
                const TileView* next) {
    switch (rows_per_head_ - row) {
      case 1:
        return RunRows<1>(head, row, tile_key, tile, next);
      case 2:
        return RunRows<2>(head, row, tile_key, tile, next);
      case 3:
        return RunRows<3>(head, row, tile_key, tile, next);
      default:
        return RunRows<kBlockRows>(head, row, tile_key, tile, next);
    }
  }

  template <int kRows>
  void RunRows(int head, int row, std::int64_t tile_key, const TileView& tile,
               const TileView* next) {
    alignas(64) float scores[kRows * kDecodeTileKeys];
    alignas(64) Probability p[kRows * kDecodeTileKeys];
    float factors[kRows];
    // Lanes that no key fills are masked below, but their arithmetic must not see stray bits that
    // trap or slow it down.
    if (tile.last() - tile.first() < kDecodeTileKeys) std::memset(scores, 0, sizeof scores);
    const int state = head * rows_per_head_ + row;
    Arithmetic::template ScoreTile<kRows>(
        scratch_.q + state * Arithmetic::QueryRowBytes(padded_dim_), padded_dim_, tile, next,
        scores);
    // Rows' chains of dependent instructions side by side: first all maxima, then all exponentials.
    RowTile rows[kRows];
    float tile_max[kRows];
    for (int i = 0; i < kRows; ++i) {
      const int first = ClampLane(visible_[row + i].begin - tile_key, tile);
      const int last = ClampLane(visible_[row + i].end - tile_key, tile);
      float* row_scores = scores + i * kDecodeTileKeys;
      rows[i] = PrepareRow(Place(state + i), tile_key, first, last, row_scores);
      tile_max[i] = TileMax(rows[i], row_scores);
    }
    for (int i = 0; i < kRows; ++i) {
      const RowSoftmax softmax = SoftmaxStep<Arithmetic>(
          rows[i], scores + i * kDecodeTileKeys, tile_max[i], scratch_.row_max[state + i],
          scratch_.row_sum[state + i], p + i * kDecodeTileKeys);
      scratch_.row_max[state + i] = softmax.row_max;
      scratch_.row_sum[state + i] = softmax.row_sum;
      factors[i] = softmax.factor;
    }
    AccumulateTile<Arithmetic, kRows>(p, factors, tile, next, padded_dim_,
                                      scratch_.accumulator + state * padded_dim_);
  }

  static int ClampLane(std::int64_t lane, const TileView& tile) {
    if (lane < tile.first()) return tile.first();
    return lane > tile.last() ? tile.last() : static_cast<int>(lane);
  }

  void FillTile(std::int64_t tile_key, TileRows& tile) const {
    const KeyRange& keys = segment_.keys;
    tile.first = keys.begin > tile_key ? static_cast<int>(keys.begin - tile_key) : 0;
    tile.last = keys.end < tile_key + kDecodeTileKeys ? static_cast<int>(keys.end - tile_key)
                                                      : kDecodeTileKeys;
    for (int lane = tile.first; lane < tile.last;) {
      const std::int64_t key = tile_key + lane;
      const int run = rows_.ContiguousRows(key, tile.last - lane);
      const std::byte* k = rows_.Key(key);
      const std::byte* v = rows_.Value(key);
      for (int i = 0; i < run; ++i) {
        tile.k[lane + i] = k + i * rows_.k_row_bytes();
        tile.v[lane + i] = v + i * rows_.v_row_bytes();
      }
      lane += run;
    }
    RepeatEdges(tile);
  }

  static void RepeatEdges(TileRows& tile) {
    for (int lane = 0; lane < tile.first; ++lane) {
      tile.k[lane] = tile.k[tile.first];
      tile.v[lane] = tile.v[tile.first];
    }
    for (int lane = tile.last; lane < kDecodeTileKeys; ++lane) {
      tile.k[lane] = tile.k[tile.last - 1];
      tile.v[lane] = tile.v[tile.last - 1];
    }
  }

  // Contiguous rows of an odd length are copied into padded ones: reading whole lines in place
  // would pass the end of the last row, or multiply the next head by zero.
  void CopyRows(const TileView& tile, TileRows& copy) const {
    const std::int64_t padded_bytes = padded_dim_ * static_cast<std::int64_t>(sizeof(Element));
    const std::int64_t bytes = head_dim_ * static_cast<std::int64_t>(sizeof(Element));
    copy.first = tile.first();
    copy.last = tile.last();
    for (int lane = copy.first; lane < copy.last; ++lane) {
      copy.k[lane] =
          CopyRow(tile.Key(lane), scratch_.k_tile + lane * padded_bytes, bytes, padded_bytes);
      copy.v[lane] =
          CopyRow(tile.Value(lane), scratch_.v_tile + lane * padded_bytes, bytes, padded_bytes);
    }
    RepeatEdges(copy);
  }

  static const std::byte* CopyRow(const std::byte* from, std::byte* to, std::int64_t bytes,
                                  std::int64_t padded_bytes) {
    std::memcpy(to, from, bytes);
    std::memset(to + bytes, 0, padded_bytes - bytes);
    return to;
  }

  const DecodeSegment& segment_;
  DecodeScratch& scratch_;
  const KvRows rows_;  // of the first head
  const int head_dim_, padded_dim_, group_, num_heads_, rows_per_head_;
  const bool copy_rows_;
  KeyRange visible_[kMaxDecodeRows];  // of each row; the same for every head
};

}  // namespace
}  // namespace attnd::kernels
