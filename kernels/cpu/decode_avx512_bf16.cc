// Decode with BF16 dot products (vdpbf16ps): half the multiply-add instructions of widened BF16,
// products exact, sums in FP32. Probabilities are rounded to BF16 as an unfused BF16 pipeline
// rounds them; their sum is taken before rounding.
#include <immintrin.h>

#include <algorithm>

#include "kernels/cpu/decode_loop.h"

namespace attnd::kernels {
namespace {

struct Bf16DotArithmetic {
  using Element = Bf16;
  using Probability = std::uint16_t;  // BF16 bits
  static constexpr int kStep = 32;    // elements of one 64-byte line
  static constexpr int kChunkSteps = 2;
  static constexpr bool kBlocked = true;

  static std::int64_t QueryRowBytes(int padded_dim) { return padded_dim * 2; }

  static void PackQuery(const std::byte* padded_row, int padded_dim, std::byte* to) {
    std::memcpy(to, padded_row, padded_dim * 2);
  }

  static HWY_INLINE __m512bh LoadLine(const std::byte* from) {
    return reinterpret_cast<__m512bh>(_mm512_loadu_si512(from));
  }

  // Scores of the keys [begin, end) of a tile. One key after the other, so that rows are read in
  // ascending order; the query lines stay in registers meanwhile where kLines tells their number,
  // and are read again for each key where it is 0. Each line read prefetches one of `next`.
  template <int kRows, int kLines>
  static HWY_INLINE void ScoreBlock(const std::byte* q, int row_bytes, const TileView& tile,
                                    const TileView& next, int begin, int end, float* scores) {
    constexpr int kKeys = kRows == 1 ? 4 : 2;
    __m512bh q_lines[kRows][std::max(1, kLines)];
    Unroll<kRows>([&](auto row) HWY_ATTR {
      Unroll<kLines>([&](auto line) HWY_ATTR {
        q_lines[row][line] = LoadLine(q + row * row_bytes + line * 64);
      });
    });
    for (int key = begin; key < end; key += kKeys) {
      Floats sums[kRows][kKeys];
      Unroll<kKeys>([&](auto i) HWY_ATTR {
        const std::byte* k = tile.Key(key + i);
        const std::byte* next_k = next.Key(key + i);
        Unroll<kRows>([&](auto row) HWY_ATTR { sums[row][i].raw = _mm512_setzero_ps(); });
        Unroll<kLines>([&](auto line) HWY_ATTR {
          PrefetchRow(next_k + line * 64, 64);
          const __m512bh k_line = LoadLine(k + line * 64);
          Unroll<kRows>([&](auto row) HWY_ATTR {
            sums[row][i].raw = _mm512_dpbf16_ps(sums[row][i].raw, q_lines[row][line], k_line);
          });
        });
        for (int offset = 0; kLines == 0 && offset < row_bytes; offset += 64) {
          PrefetchRow(next_k + offset, 64);
          const __m512bh k_line = LoadLine(k + offset);
          Unroll<kRows>([&](auto row) HWY_ATTR {
            sums[row][i].raw =
                _mm512_dpbf16_ps(sums[row][i].raw, LoadLine(q + row * row_bytes + offset), k_line);
          });
        }
      });
      StoreSums<kRows, kKeys>(sums, scores + key);
    }
  }

  template <int kRows>
  static void ScoreTile(const std::byte* q, int padded_dim, const TileView& tile,
                        const TileView* next, float* scores) {
    const int row_bytes = padded_dim * 2;
    const int block_keys = BlockKeys(row_bytes);
    const int first = tile.first() / 4 * 4;
    const TileView& ahead = Ahead(next, tile);
    for (int begin = first; begin < tile.last();
         begin = begin / block_keys * block_keys + block_keys) {
      const int end =
          std::min(begin / block_keys * block_keys + block_keys, (tile.last() + 3) / 4 * 4);
      if (next != nullptr) TouchKeys(tile, begin, end, row_bytes);
      switch (row_bytes / 64) {
        case 1:
          ScoreBlock<kRows, 1>(q, row_bytes, tile, ahead, begin, end, scores);
          break;
        case 2:
          ScoreBlock<kRows, 2>(q, row_bytes, tile, ahead, begin, end, scores);
          break;
        case 4:
          ScoreBlock<kRows, 4>(q, row_bytes, tile, ahead, begin, end, scores);
          break;
        default:
          ScoreBlock<kRows, 0>(q, row_bytes, tile, ahead, begin, end, scores);
          break;
      }
    }
  }

  static HWY_INLINE void StoreProbabilities(Floats p, Probability* to) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(to),
                       reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(p.raw)));
  }

  // One pass over the values for kSteps lines of dims. Two keys are interleaved element by element,
  // so that a lane of the dot product adds both keys' shares of one dim. The interleave works
  // inside 128-bit lanes; accumulators keep that order (Finish undoes it): of each 32 dims the
  // first vector holds dims 8i + 0..3 and the second dims 8i + 4..7 in its lane i.
  template <int kRows, int kSteps>
  static HWY_INLINE void AccumulateChunk(const Probability* p, const float* factors,
                                         const TileView& tile, const KeyBlock& block,
                                         int block_keys, const TileView* next, int dim,
                                         int padded_dim, float* accumulator) {
    __m512 sums[kRows][2 * kSteps];
    Unroll<kRows>([&](auto row) HWY_ATTR {
      Unroll<2 * kSteps>([&](auto i) HWY_ATTR { sums[row][i] = _mm512_setzero_ps(); });
    });
    const std::int64_t offset = std::int64_t{dim} * 2;
    RowPrefetch prefetch = RowPrefetch::Values(
        Ahead(next, tile), block.begin + dim * block_keys / padded_dim, padded_dim * 2);
    for (int key = block.first / 2 * 2; key < block.last; key += 2) {
      prefetch.Lines<2 * kSteps>();
      const std::byte* even_row = tile.Value(key) + offset;
      const std::byte* odd_row = tile.Value(key + 1) + offset;
      __m512bh v[2 * kSteps];
      Unroll<kSteps>([&](auto step) HWY_ATTR {
        const __m512i even = _mm512_loadu_si512(even_row + step * 64);
        const __m512i odd = _mm512_loadu_si512(odd_row + step * 64);
        v[2 * step] = reinterpret_cast<__m512bh>(_mm512_unpacklo_epi16(even, odd));
        v[2 * step + 1] = reinterpret_cast<__m512bh>(_mm512_unpackhi_epi16(even, odd));
      });
      Unroll<kRows>([&](auto row) HWY_ATTR {
        int pair = 0;
        std::memcpy(&pair, p + row * kDecodeTileKeys + key, sizeof pair);
        const auto weights = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
        Unroll<2 * kSteps>(
            [&](auto i) HWY_ATTR { sums[row][i] = _mm512_dpbf16_ps(sums[row][i], weights, v[i]); });
      });
    }
    Unroll<kRows>([&](auto row) HWY_ATTR {
      const __m512 factor = _mm512_set1_ps(factors[row]);
      Unroll<2 * kSteps>([&](auto i) HWY_ATTR {
        float* before = accumulator + row * padded_dim + dim + i * 16;
        _mm512_store_ps(before, _mm512_fmadd_ps(factor, _mm512_load_ps(before), sums[row][i]));
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
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i high =
        _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    for (int dim = 0; dim < padded_dim; dim += kStep) {
      const __m512 first = _mm512_load_ps(accumulator + dim);
      const __m512 second = _mm512_load_ps(accumulator + dim + 16);
      _mm512_store_ps(accumulator + dim, _mm512_permutex2var_ps(first, low, second));
      _mm512_store_ps(accumulator + dim + 16, _mm512_permutex2var_ps(first, high, second));
    }
  }
};

}  // namespace

void DecodeSegmentAvx512Bf16(const DecodeSegment& segment, DecodeScratch& scratch) {
  SegmentLoop<Bf16DotArithmetic>(segment, scratch).Run();
}

}  // namespace attnd::kernels
