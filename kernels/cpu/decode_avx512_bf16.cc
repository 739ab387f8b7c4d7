// Decode with BF16 dot products (vdpbf16ps): half the multiply-add instructions of widened BF16,
// products exact, sums in FP32. Probabilities are rounded to BF16 as an unfused BF16 pipeline
// rounds them; their sum is taken before rounding.
#include <immintrin.h>

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

  template <int kRows>
  static void ScoreTile(const std::byte* q, int padded_dim, const TileView& tile,
                        const TileView* next, float* scores) {
    constexpr int kKeys = 4;
    const int row_bytes = padded_dim * 2;
    const int block_keys = BlockKeys(row_bytes);
    for (int key = tile.first() / kKeys * kKeys; key < tile.last(); key += kKeys) {
      if (next != nullptr && key % block_keys == 0) {
        for (int i = 0; i < block_keys; ++i) TouchRow(tile.Key(key + i), row_bytes);
      }
      const std::byte* rows[kKeys];
      const std::byte* next_rows[kKeys];
      Unroll<kKeys>([&](auto i) HWY_ATTR {
        rows[i] = tile.Key(key + i);
        if (next != nullptr) next_rows[i] = next->Key(key + i);
      });
      __m512 sums[kRows][kKeys];
      Unroll<kRows>([&](auto row) HWY_ATTR {
        Unroll<kKeys>([&](auto i) HWY_ATTR { sums[row][i] = _mm512_setzero_ps(); });
      });
      for (int offset = 0; offset < row_bytes; offset += 64) {
        if (next != nullptr) {
          Unroll<kKeys>([&](auto i) HWY_ATTR { PrefetchRow(next_rows[i] + offset, 64); });
        }
        __m512bh k[kKeys];
        Unroll<kKeys>([&](auto i) HWY_ATTR { k[i] = LoadLine(rows[i] + offset); });
        Unroll<kRows>([&](auto row) HWY_ATTR {
          const __m512bh q_line = LoadLine(q + row * row_bytes + offset);
          Unroll<kKeys>([&](auto i) HWY_ATTR {
            sums[row][i] = _mm512_dpbf16_ps(sums[row][i], q_line, k[i]);
          });
        });
      }
      Unroll<kRows>([&](auto row) HWY_ATTR {
        const auto four = SumFour(Floats{sums[row][0]}, Floats{sums[row][1]}, Floats{sums[row][2]},
                                  Floats{sums[row][3]});
        hn::StoreU(four, hn::FixedTag<float, 4>(), scores + row * kDecodeTileKeys + key);
      });
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
      const __m512 factor = _mm512_set1_ps(factors[row]);
      Unroll<2 * kSteps>([&](auto i) HWY_ATTR {
        sums[row][i] =
            _mm512_mul_ps(factor, _mm512_load_ps(accumulator + row * padded_dim + dim + i * 16));
      });
    });
    const std::int64_t offset = std::int64_t{dim} * 2;
    SharedPrefetch prefetch(next, block, block_keys, dim, kSteps * kStep, padded_dim,
                            padded_dim * 2);
    for (int key = block.first / 2 * 2; key < block.last; key += 2) {
      prefetch.Step();
      prefetch.Step();
      __m512bh v[2 * kSteps];
      Unroll<kSteps>([&](auto step) HWY_ATTR {
        const __m512i even = _mm512_loadu_si512(tile.Value(key) + offset + step * 64);
        const __m512i odd = _mm512_loadu_si512(tile.Value(key + 1) + offset + step * 64);
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
      Unroll<2 * kSteps>([&](auto i) HWY_ATTR {
        _mm512_store_ps(accumulator + row * padded_dim + dim + i * 16, sums[row][i]);
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
