// The tile loop of the decode targets: walks the keys of a segment, blocks of query rows inside.
// Part of decode_<target>.cc (decode_tile.h).
#pragma once

#include "kernels/cpu/decode_softmax.h"

namespace attnd::kernels {
namespace {

template <class Arithmetic>
class SegmentLoop {
 public:
  using Element = typename Arithmetic::Element;
  using Probability = typename Arithmetic::Probability;

  SegmentLoop(const DecodeSegment& segment, DecodeScratch& scratch)
      : segment_(segment),
        scratch_(scratch),
        rows_(*segment.params, *segment.sequence, segment.kv_head),
        head_dim_(segment.params->head_dim),
        padded_dim_(PaddedHeadDim(head_dim_)),
        group_(segment.params->num_heads / segment.params->num_kv_heads),
        num_rows_(static_cast<int>(segment.row_end - segment.row_begin)),
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
    for (int row = 0; row < num_rows_; ++row) {
      Arithmetic::Finish(scratch_.accumulator + row * padded_dim_, padded_dim_);
    }
  }

 private:
  void PackQueries() {
    const AttentionSequence& sequence = *segment_.sequence;
    alignas(64) std::byte padded[kMaxHeadDim * sizeof(Element)] = {};
    for (int row = 0; row < num_rows_; ++row) {
      const RowTransform place = Place(row);
      const auto* q = static_cast<const Element*>(sequence.q) +
                      place.token * sequence.q_token_stride + place.head * sequence.q_head_stride;
      std::memcpy(padded, q, head_dim_ * sizeof(Element));
      Arithmetic::PackQuery(padded, padded_dim_,
                            scratch_.q + row * Arithmetic::QueryRowBytes(padded_dim_));
    }
  }

  void Reset() {
    for (int row = 0; row < num_rows_; ++row) {
      scratch_.row_max[row] = MinusInfinity();
      scratch_.row_sum[row] = 0;
      const KeyRange visible = VisibleKeys(*segment_.sequence, Place(row).token);
      first_key_[row] = visible.begin;
      last_key_[row] = visible.end;
    }
    std::memset(scratch_.accumulator, 0, num_rows_ * padded_dim_ * sizeof(float));
  }

  // Token and head of local row `row`; keys filled in by Reset.
  RowTransform Place(int row) const {
    const std::int64_t packed = segment_.row_begin + row;
    return {segment_.sequence, packed / group_,
            segment_.kv_head * group_ + static_cast<int>(packed % group_), 0, 0};
  }

  void RunTiles(std::int64_t tile_key) {
    TileRows tiles[2];
    FillTile(tile_key, tiles[0]);
    for (int current = 0; tile_key < segment_.keys.end; current ^= 1) {
      const TileRows& tile = tiles[current];
      const std::int64_t next_key = tile_key + kDecodeTileKeys;
      const TileRows* next = nullptr;
      if (!copy_rows_ && next_key < segment_.keys.end) {
        FillTile(next_key, tiles[current ^ 1]);
        next = &tiles[current ^ 1];
      }
      for (int row = 0; row < num_rows_; row += kBlockRows) {
        RunBlock(row, tile_key, tile, row == 0 ? next : nullptr);
      }
      if (copy_rows_ && next_key < segment_.keys.end) FillTile(next_key, tiles[current ^ 1]);
      tile_key = next_key;
    }
  }

  void RunBlock(int row, std::int64_t tile_key, const TileRows& tile, const TileRows* next) {
    switch (num_rows_ - row) {
      case 1:
        return RunRows<1>(row, tile_key, tile, next);
      case 2:
        return RunRows<2>(row, tile_key, tile, next);
      case 3:
        return RunRows<3>(row, tile_key, tile, next);
      default:
        return RunRows<kBlockRows>(row, tile_key, tile, next);
    }
  }

  template <int kRows>
  void RunRows(int row, std::int64_t tile_key, const TileRows& tile, const TileRows* next) {
    alignas(64) float scores[kRows * kDecodeTileKeys];
    alignas(64) Probability p[kRows * kDecodeTileKeys];
    float factors[kRows];
    // Lanes that no key fills are masked below, but their arithmetic must not see stray bits that
    // trap or slow it down.
    if (tile.last - tile.first < kDecodeTileKeys) std::memset(scores, 0, sizeof scores);
    Arithmetic::template ScoreTile<kRows>(scratch_.q + row * Arithmetic::QueryRowBytes(padded_dim_),
                                          padded_dim_, tile, next, scores);
    for (int i = 0; i < kRows; ++i) {
      RowTransform place = Place(row + i);
      const int first = ClampLane(first_key_[row + i] - tile_key, tile);
      const int last = ClampLane(last_key_[row + i] - tile_key, tile);
      const RowSoftmax state = SoftmaxStep<Arithmetic>(
          place, tile_key, first, last, scores + i * kDecodeTileKeys, scratch_.row_max[row + i],
          scratch_.row_sum[row + i], p + i * kDecodeTileKeys);
      scratch_.row_max[row + i] = state.row_max;
      scratch_.row_sum[row + i] = state.row_sum;
      factors[i] = state.factor;
    }
    Arithmetic::template AccumulateTile<kRows>(p, factors, tile, next, padded_dim_,
                                               scratch_.accumulator + row * padded_dim_);
  }

  static int ClampLane(std::int64_t lane, const TileRows& tile) {
    if (lane < tile.first) return tile.first;
    return lane > tile.last ? tile.last : static_cast<int>(lane);
  }

  void FillTile(std::int64_t tile_key, TileRows& tile) {
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
    if (copy_rows_) CopyRows(tile);
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
  void CopyRows(TileRows& tile) {
    const std::int64_t padded_bytes = padded_dim_ * static_cast<std::int64_t>(sizeof(Element));
    const std::int64_t bytes = head_dim_ * static_cast<std::int64_t>(sizeof(Element));
    for (int lane = tile.first; lane < tile.last; ++lane) {
      tile.k[lane] =
          CopyRow(tile.k[lane], scratch_.k_tile + lane * padded_bytes, bytes, padded_bytes);
      tile.v[lane] =
          CopyRow(tile.v[lane], scratch_.v_tile + lane * padded_bytes, bytes, padded_bytes);
    }
  }

  static const std::byte* CopyRow(const std::byte* from, std::byte* to, std::int64_t bytes,
                                  std::int64_t padded_bytes) {
    std::memcpy(to, from, bytes);
    std::memset(to + bytes, 0, padded_bytes - bytes);
    return to;
  }

  const DecodeSegment& segment_;
  DecodeScratch& scratch_;
  const KvRows rows_;
  const int head_dim_, padded_dim_, group_, num_rows_;
  const bool copy_rows_;
  std::int64_t first_key_[kMaxDecodeRows];
  std::int64_t last_key_[kMaxDecodeRows];
};

}  // namespace
}  // namespace attnd::kernels
