// The body of the decode targets, in Highway: tile loop, softmax step, and the FMA arithmetic for
// every type. Included once by each decode_<target>.cc, which is compiled for its target; all names
// are local to that file, so that the linker cannot merge one target's code into another's.
#pragma once

#include <cstring>

#include "kernels/cpu/decode_rows.h"
#include "kernels/cpu/decode_segment.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/kv_rows.h"
#include "kernels/cpu/simd_math.h"

namespace attnd::kernels {
namespace {

constexpr int kBlockRows = 4;  // query rows that share one read of a tile from the cache

// Loads 2 * kLanes consecutive elements widened to FP32. For BF16 `first` holds the elements of
// even index and `second` the odd ones (two cheap operations instead of two shuffles); queries and
// accumulators keep the same order, StoreNatural undoes it.
HWY_INLINE void LoadStep(const float* from, Floats& first, Floats& second) {
  const FloatTag d;
  first = hn::LoadU(d, from);
  second = hn::LoadU(d, from + kLanes);
}
HWY_INLINE void LoadStep(const Fp16* from, Floats& first, Floats& second) {
  const FloatTag d;
  const hn::Rebind<hwy::float16_t, FloatTag> half;
  const auto* elements = reinterpret_cast<const hwy::float16_t*>(from);
  first = hn::PromoteTo(d, hn::LoadU(half, elements));
  second = hn::PromoteTo(d, hn::LoadU(half, elements + kLanes));
}
HWY_INLINE void LoadStep(const Bf16* from, Floats& first, Floats& second) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> du;
  const auto pairs = hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(from));
  first = hn::BitCast(d, hn::ShiftLeft<16>(pairs));
  second = hn::BitCast(d, hn::And(pairs, hn::Set(du, 0xFFFF0000U)));
}

template <class Element>
HWY_INLINE void StoreNatural(float* accumulator, int padded_dim) {
  if constexpr (std::is_same_v<Element, Bf16>) {
    const FloatTag d;
    for (int dim = 0; dim < padded_dim; dim += 2 * kLanes) {
      const Floats even = hn::LoadU(d, accumulator + dim);
      const Floats odd = hn::LoadU(d, accumulator + dim + kLanes);
      hn::StoreInterleaved2(even, odd, d, accumulator + dim);
    }
  }
}

// Adds halves to each other until four lanes are left.
template <class V>
HWY_INLINE auto FoldToFour(V v) {
  using Tag = hn::DFromV<V>;
  if constexpr (hn::MaxLanes(Tag()) == 4) {
    return v;
  } else {
    const hn::Half<Tag> half;
    return FoldToFour(hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// Four vectors -> the sum of the lanes of each.
HWY_INLINE hn::Vec<hn::FixedTag<float, 4>> SumFour(Floats a, Floats b, Floats c, Floats e) {
  const FloatTag d;
  const hn::Repartition<double, FloatTag> dd;
  const Floats ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const Floats ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const auto ab2 = hn::BitCast(dd, ab);
  const auto ce2 = hn::BitCast(dd, ce);
  const Floats blocks = hn::Add(hn::BitCast(d, hn::InterleaveLower(dd, ab2, ce2)),
                                hn::BitCast(d, hn::InterleaveUpper(dd, ab2, ce2)));
  return FoldToFour(blocks);
}

// The lane sums of kRows x kKeys vectors, to scores[row][key].
template <int kRows, int kKeys>
HWY_INLINE void StoreSums(const Floats (&sums)[kRows][kKeys], float* scores) {
  if constexpr (kKeys == 4) {
    Unroll<kRows>([&](auto row) HWY_ATTR {
      hn::StoreU(SumFour(sums[row][0], sums[row][1], sums[row][2], sums[row][3]),
                 hn::FixedTag<float, 4>(), scores + row * kDecodeTileKeys);
    });
  } else {
    static_assert(kKeys == 2);
    const hn::FixedTag<float, 2> d2;
    Unroll<(kRows + 1) / 2>([&](auto pair) HWY_ATTR {
      constexpr int kRow = 2 * decltype(pair)::value;
      constexpr int kNext = kRow + 1 < kRows ? kRow + 1 : kRow;
      const auto four = SumFour(sums[kRow][0], sums[kRow][1], sums[kNext][0], sums[kNext][1]);
      hn::StoreU(hn::LowerHalf(d2, four), d2, scores + kRow * kDecodeTileKeys);
      hn::StoreU(hn::UpperHalf(d2, four), d2, scores + kNext * kDecodeTileKeys);
    });
  }
}

// FP32 arithmetic on widened elements: q, p and every product in FP32.
template <class ElementType>
struct FmaArithmetic {
  using Element = ElementType;
  using Probability = float;
  static constexpr int kStep = 2 * kLanes;  // elements of one LoadStep; divides padded head_dim
  // Accumulators of one pass over the values: 16 of 32 registers, or 8 of 16.
  static constexpr int kChunkSteps = kLanes == 16 ? 2 : 1;

  static std::int64_t QueryRowBytes(int padded_dim) { return padded_dim * sizeof(float); }

  static void PackQuery(const std::byte* padded_row, int padded_dim, std::byte* to) {
    const FloatTag d;
    const auto* from = reinterpret_cast<const Element*>(padded_row);
    auto* q = reinterpret_cast<float*>(to);
    for (int dim = 0; dim < padded_dim; dim += kStep) {
      Floats first, second;
      LoadStep(from + dim, first, second);
      hn::StoreU(first, d, q + dim);
      hn::StoreU(second, d, q + dim + kLanes);
    }
  }

  // Whether one step covers whole lines: prefetches are then spread over the steps. Targets of half
  // a line a step wait for arithmetic, and every instruction in the step costs them time.
  static constexpr bool kWholeLines = kStep * sizeof(Element) >= 64;
  // Whether values are touched and worked on in blocks (TouchRow, BlockKeys): pays where memory is
  // waited for, and costs where arithmetic is. Keys are read two rows at a time, ascending enough.
  static constexpr bool kBlocked = kLanes == 16 && sizeof(Element) == 4;

  // scores[row][key..key + kKeys) of kRows rows against kKeys keys.
  template <int kRows, int kKeys>
  static HWY_INLINE void ScoreKeys(const float* q, int padded_dim, const std::byte* const* k,
                                   RowPrefetch& prefetch, float* scores) {
    const FloatTag d;
    Floats sums[kRows][kKeys];
    Unroll<kRows>([&](auto row) HWY_ATTR {
      Unroll<kKeys>([&](auto key) HWY_ATTR { sums[row][key] = hn::Zero(d); });
    });
    for (int dim = 0; dim < padded_dim; dim += kStep) {
      Floats first[kKeys], second[kKeys];
      if constexpr (kWholeLines) {
        prefetch.template Lines<kKeys * kStep* static_cast<int>(sizeof(Element)) / 64>();
      }
      Unroll<kKeys>([&](auto key) HWY_ATTR {
        LoadStep(reinterpret_cast<const Element*>(k[key]) + dim, first[key], second[key]);
      });
      Unroll<kRows>([&](auto row) HWY_ATTR {
        const Floats q_first = hn::Load(d, q + row * padded_dim + dim);
        const Floats q_second = hn::Load(d, q + row * padded_dim + dim + kLanes);
        Unroll<kKeys>([&](auto key) HWY_ATTR {
          sums[row][key] = hn::MulAdd(q_first, first[key], sums[row][key]);
          sums[row][key] = hn::MulAdd(q_second, second[key], sums[row][key]);
        });
      });
    }
    StoreSums<kRows, kKeys>(sums, scores);
  }

  // Keys of one ScoreKeys call: as many sums as the registers hold; FP32, which waits for memory
  // and not for arithmetic, reads two rows at a time better than four.
  template <int kRows>
  static constexpr int KeysAtOnce() {
    return kRows <= 2 || (kLanes == 16 && sizeof(Element) == 2) ? 4 : 2;
  }

  template <int kRows>
  static void ScoreTile(const std::byte* q, int padded_dim, const TileView& tile,
                        const TileView* next, float* scores) {
    constexpr int kKeys = KeysAtOnce<kRows>();
    const auto row_bytes = static_cast<int>(padded_dim * sizeof(Element));
    const int begin = tile.first() / kKeys * kKeys;
    RowPrefetch prefetch = RowPrefetch::Keys(Ahead(next, tile), begin, row_bytes);
    for (int key = begin; key < tile.last(); key += kKeys) {
      const std::byte* k[kKeys];
      Unroll<kKeys>([&](auto i) HWY_ATTR { k[i] = tile.Key(key + i); });
      if (!kWholeLines && next != nullptr) prefetch.WholeRows(kKeys * row_bytes);
      ScoreKeys<kRows, kKeys>(reinterpret_cast<const float*>(q), padded_dim, k, prefetch,
                              scores + key);
    }
  }

  static HWY_INLINE void StoreProbabilities(Floats p, Probability* to) {
    hn::Store(p, FloatTag(), to);
  }

  // accumulator[row][dim] = accumulator * factors[row] + sum over keys of p[row][key] *
  // v[key][dim]. The sum is formed apart: one chain through all keys would round each of them at
  // the size of the whole.
  template <int kRows, int kSteps>
  static HWY_INLINE void AccumulateChunk(const Probability* p, const float* factors,
                                         const TileView& tile, const KeyBlock& block,
                                         int block_keys, const TileView* next, int dim,
                                         int padded_dim, float* accumulator) {
    const FloatTag d;
    Floats sums[kRows][2 * kSteps];
    Unroll<kRows>([&](auto row) HWY_ATTR {
      Unroll<2 * kSteps>([&](auto i) HWY_ATTR { sums[row][i] = hn::Zero(d); });
    });
    constexpr auto kChunkBytes = static_cast<int>(kSteps * kStep * sizeof(Element));
    const auto row_bytes = static_cast<int>(padded_dim * sizeof(Element));
    RowPrefetch prefetch = RowPrefetch::Values(
        Ahead(next, tile), block.begin + dim * block_keys / padded_dim, row_bytes);
    const bool first_pass = kWholeLines && !kBlocked && dim == 0 && next != nullptr;
    const std::int64_t offset = dim * static_cast<std::int64_t>(sizeof(Element));
    const int last = block.last;
    for (int key = block.first; key < last; ++key) {
      if constexpr (kWholeLines) {
        prefetch.template Lines<kChunkBytes / 64>();
        if (first_pass) PrefetchRestOfRow(tile.Value(key), kChunkBytes, row_bytes);
      } else if (next != nullptr && offset % 64 == 0) {
        PrefetchRow(next->Value(key) + offset, kChunkBytes);
      }
      const auto* v = reinterpret_cast<const Element*>(tile.Value(key)) + dim;
      Unroll<kSteps>([&](auto step) HWY_ATTR {
        Floats first, second;
        LoadStep(v + step * kStep, first, second);
        Unroll<kRows>([&](auto row) HWY_ATTR {
          const Floats weight = hn::Set(d, p[row * kDecodeTileKeys + key]);
          sums[row][2 * step] = hn::MulAdd(weight, first, sums[row][2 * step]);
          sums[row][2 * step + 1] = hn::MulAdd(weight, second, sums[row][2 * step + 1]);
        });
      });
    }
    Unroll<kRows>([&](auto row) HWY_ATTR {
      const Floats factor = hn::Set(d, factors[row]);
      Unroll<2 * kSteps>([&](auto i) HWY_ATTR {
        float* before = accumulator + row * padded_dim + dim + i * kLanes;
        hn::Store(hn::MulAdd(factor, hn::Load(d, before), sums[row][i]), d, before);
      });
    });
  }

  template <int kRows>
  static void AccumulateBlock(const Probability* p, const float* factors, const TileView& tile,
                              const KeyBlock& block, int block_keys, const TileView* next,
                              int padded_dim, float* accumulator) {
    int dim = 0;
    for (; dim + kChunkSteps * kStep <= padded_dim; dim += kChunkSteps * kStep) {
      AccumulateChunk<kRows, kChunkSteps>(p, factors, tile, block, block_keys, next, dim,
                                          padded_dim, accumulator);
    }
    for (; dim < padded_dim; dim += kStep) {
      AccumulateChunk<kRows, 1>(p, factors, tile, block, block_keys, next, dim, padded_dim,
                                accumulator);
    }
  }

  static void Finish(float* accumulator, int padded_dim) {
    StoreNatural<Element>(accumulator, padded_dim);
  }
};

// accumulator[row] = accumulator[row] * factors[row] + sum over the tile's keys of p * v, block by
// block.
template <class Arithmetic, int kRows>
HWY_INLINE void AccumulateTile(const typename Arithmetic::Probability* p, const float* factors,
                               const TileView& tile, const TileView* next, int padded_dim,
                               float* accumulator) {
  const auto row_bytes = static_cast<int>(padded_dim * sizeof(typename Arithmetic::Element));
  const int block_keys = Arithmetic::kBlocked ? BlockKeys(row_bytes) : kDecodeTileKeys;
  float ones[kRows];
  for (float& one : ones) one = 1.0F;
  for (int begin = tile.first() / block_keys * block_keys; begin < tile.last();
       begin += block_keys) {
    const int end = begin + block_keys;
    const KeyBlock block{begin, begin < tile.first() ? tile.first() : begin,
                         end > tile.last() ? tile.last() : end};
    if (Arithmetic::kBlocked && next != nullptr) {
      TouchValues(tile, block.first, block.last, row_bytes);
    }
    Arithmetic::template AccumulateBlock<kRows>(p, factors, tile, block, block_keys, next,
                                                padded_dim, accumulator);
    factors = ones;
  }
}

}  // namespace
}  // namespace attnd::kernels
