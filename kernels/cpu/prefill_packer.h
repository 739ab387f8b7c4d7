// Rows of q, k and v into the tile's layouts, and o back out of it.
#pragma once

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/prefill_block.h"
#include "kernels/cpu/prefill_rows.h"
#include "kernels/cpu/prefill_scratch.h"

namespace attnd::kernels {

namespace hn = hwy::HWY_NAMESPACE;

// Asks for the rows of the key tile to come while this one is computed: rows of one head lie far
// apart, and no hardware prefetcher follows them. One step a panel, so that the misses spread over
// the arithmetic.
template <class Target>
class KeyPrefetch {
 public:
  // num_panels: steps that one key tile has.
  KeyPrefetch(const KvAddress& kv, std::int64_t row_bytes, int num_panels)
      : kv_(kv),
        row_bytes_(row_bytes),
        rows_per_step_((Target::kTileKeys + num_panels - 1) / num_panels) {}

  void Begin(std::int64_t first, std::int64_t end) {
    next_ = first;
    end_ = end;
  }

  HWY_INLINE void Step() {
    using Rows = PrefillRows<Target>;
    for (int i = 0; i < rows_per_step_ && next_ < end_; ++i, ++next_) {
      Rows::Prefetch(Rows::Address(kv_, kv_.k, kv_.k_stride_bytes, next_), row_bytes_);
      Rows::Prefetch(Rows::Address(kv_, kv_.v, kv_.v_stride_bytes, next_), row_bytes_);
    }
  }

 private:
  const KvAddress kv_;
  const std::int64_t row_bytes_;
  const int rows_per_step_;
  std::int64_t next_ = 0, end_ = 0;
};

template <class Target>
class PrefillPacker {
 public:
  using Scratch = PrefillScratch<Target>;
  using Unit = std::uint32_t;

  PrefillPacker(const AttentionParams& params, const PrefillBlock& block, const Scratch& scratch)
      : params_(params),
        block_(block),
        sequence_(*block.sequence),
        scratch_(scratch),
        group_(params.num_heads / params.num_kv_heads),
        num_units_((params.head_dim + kPair - 1) / kPair),
        row_bytes_(params.head_dim * ElementSize(params.kv_data_type)) {
    std::memset(scratch.zeros(), 0, Rows::kMaxRowUnits * sizeof(Unit));
  }

  std::int64_t row_bytes() const { return row_bytes_; }  // of k and v
  // Units of one row of q or k that hold elements.
  int num_units() const { return num_units_; }

  // q of the block's rows; absent rows of the last tile become zero.
  HWY_NOINLINE void PackQueries(int num_tiles) const {
    const auto* base = static_cast<const std::byte*>(sequence_.q);
    const bool in_place = Rows::InPlace(params_.data_type, params_.head_dim);
    for (int tile = 0; tile < num_tiles; ++tile) {
      for (int lane = 0; lane < kTileRows; lane += 4) {
        const Unit* rows[4];
        for (int i = 0; i < 4; ++i) {
          const int row = tile * kTileRows + lane + i;
          rows[i] = scratch_.zeros();
          if (row < block_.num_rows) {
            const std::byte* from = base + QueryOffset(row);
            if (row + 8 < block_.num_rows) Rows::Prefetch(base + QueryOffset(row + 8), row_bytes_);
            if (in_place) {
              rows[i] = reinterpret_cast<const Unit*>(from);
            } else {
              Rows::Stage(from, params_.data_type, params_.head_dim, scratch_.staged(i));
              rows[i] = scratch_.staged(i);
            }
          }
        }
        Rows::Transpose4(rows, num_units_, scratch_.q(tile) + lane, kTileRows);
      }
    }
    ApplyScaleSign(num_tiles);
  }

  // Keys and values [first, first + num_keys); absent keys of the last panel become zero.
  HWY_NOINLINE void PackKeys(std::int64_t first, int num_keys) const {
    const bool in_place = Rows::InPlace(params_.kv_data_type, params_.head_dim);
    const KvAddress& kv = block_.kv;
    const auto row = [&](const std::byte* base, std::int64_t stride, int key,
                         int slot) -> const Unit* {
      if (key >= num_keys) return scratch_.zeros();
      const std::byte* from = Rows::Address(kv, base, stride, first + key);
      // The first tile of a block has not been asked for; later ones are near already.
      if (key + kPanel < num_keys) {
        Rows::Prefetch(Rows::Address(kv, base, stride, first + key + kPanel), row_bytes_);
      }
      if (in_place) return reinterpret_cast<const Unit*>(from);
      Rows::Stage(from, params_.kv_data_type, params_.head_dim, scratch_.staged(slot));
      return scratch_.staged(slot);
    };
    for (int panel = 0; panel < num_keys; panel += kPanel) {
      Unit* k = scratch_.k(panel);
      for (int i = 0; i < kPanel; i += 4) {
        const Unit* rows[4];
        for (int j = 0; j < 4; ++j) rows[j] = row(kv.k, kv.k_stride_bytes, panel + i + j, j);
        Rows::Transpose4(rows, num_units_, k + i, kPanel);
      }
      for (int key = panel; key < panel + kPanel; key += kPair) {
        const Unit* rows[kPair];
        for (int i = 0; i < kPair; ++i) rows[i] = row(kv.v, kv.v_stride_bytes, key + i, i);
        Target::PackValues(rows, scratch_.padded_dims() / kPanel, Scratch::kValueStride,
                           scratch_.v(0) + key / kPair * kPanel);
      }
    }
  }

  // Divides by the sums, adds the sink, writes o and lse. Bit t of the answer: tile t wrote a
  // non-finite o.
  HWY_NOINLINE std::uint32_t WriteOutput() const {
    std::uint32_t not_finite = 0;
    const DataType type = params_.partial ? DataType::kFp32 : params_.data_type;
    auto* base = static_cast<std::byte*>(sequence_.o);
    for (int first = 0; first < block_.num_rows; first += kLanes) {
      // All rows of a vector are staged before one is read: a wide load right after the narrow
      // stores that it covers would wait for them to leave the store buffer.
      const int tile = first / kTileRows;
      const Unit* dims =
          reinterpret_cast<const Unit*>(scratch_.accumulator(tile)) + first % kTileRows;
      for (int lane = 0; lane < kLanes; lane += 4) {
        for (int dim = 0; dim < scratch_.padded_dims(); dim += 4) {
          const Unit* rows[4];
          for (int i = 0; i < 4; ++i) rows[i] = dims + (dim + i) * std::int64_t{kTileRows} + lane;
          Rows::Transpose4(rows, 4, scratch_.staged(lane) + dim, Rows::kMaxRowUnits);
        }
      }
      for (int row = first; row < first + kLanes && row < block_.num_rows; ++row) {
        const float factor = FinishRow(tile, row - tile * kTileRows);
        std::byte* to = base + RowOffset(row, sequence_.o_token_stride, sequence_.o_head_stride) *
                                   ElementSize(type);
        if (!Rows::Store(reinterpret_cast<const float*>(scratch_.staged(row - first)), factor,
                         params_.head_dim, type, to)) {
          not_finite |= 1U << static_cast<unsigned>(tile);
        }
      }
    }
    return not_finite;
  }

 private:
  using Rows = PrefillRows<Target>;
  static constexpr int kPair = Scratch::kPair;
  static constexpr int kPanel = Scratch::kPanel;
  static constexpr int kLanes = Scratch::kLanes;
  static constexpr int kTileRows = Scratch::kTileRows;

  static constexpr std::int64_t ElementSize(DataType type) {
    return type == DataType::kFp32 ? 4 : 2;
  }

  // Row of q (or o) of packed row `row` of the block.
  std::int64_t RowOffset(int row, std::int64_t token_stride, std::int64_t head_stride) const {
    const std::int64_t packed = block_.row_begin + row;
    return packed / group_ * token_stride +
           (block_.kv_head * group_ + packed % group_) * head_stride;
  }

  std::int64_t QueryOffset(int row) const {
    return RowOffset(row, sequence_.q_token_stride, sequence_.q_head_stride) *
           ElementSize(params_.data_type);
  }

  // A negative scale flips the sign of q, which is exact; scale 0 makes it zero, so that every
  // visible key weighs 1.
  void ApplyScaleSign(int num_tiles) const {
    if (sequence_.softmax_scale > 0) return;
    const Unit flip = sequence_.softmax_scale < 0 ? Target::kSignBits : 0U;
    const Unit keep = sequence_.softmax_scale < 0 ? ~0U : 0U;
    Unit* units = scratch_.q(0);
    const std::int64_t count = std::int64_t{num_tiles} * kTileRows * scratch_.dim_units();
    for (std::int64_t i = 0; i < count; ++i) units[i] = (units[i] & keep) ^ flip;
  }

  // Writes lse; returns what the accumulator is multiplied with: 1 / row_sum, 0 for a row that has
  // seen no key.
  float FinishRow(int tile, int lane) const {
    const std::int64_t packed = block_.row_begin + tile * kTileRows + lane;
    const std::int64_t head = block_.kv_head * group_ + packed % group_;
    float max = scratch_.row_max(tile)[lane];
    float sum = scratch_.row_sum(tile)[lane];
    float factor = 1;
    if (sequence_.sink_logits != nullptr && !params_.partial) {
      const float sink = sequence_.sink_logits[head] * 1.4426950408889634F;
      const float joint = sink > max ? sink : max;
      factor = max == joint ? 1.0F : __builtin_exp2f(max - joint);
      sum = sum * factor + __builtin_exp2f(sink - joint);
      max = joint;
    }
    if (sequence_.lse != nullptr) {
      sequence_.lse[packed / group_ * params_.num_heads + head] =
          sum == 0 ? -__builtin_huge_valf() : max * 0.6931471805599453F + __builtin_logf(sum);
    }
    return sum == 0 ? 0.0F : factor / sum;
  }

  const AttentionParams& params_;
  const PrefillBlock& block_;
  const AttentionSequence& sequence_;
  const Scratch scratch_;
  const int group_;
  const int num_units_;
  const std::int64_t row_bytes_;
};

}  // namespace attnd::kernels
