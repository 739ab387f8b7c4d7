// Fused prefill for AVX-512 BF16: both products by vdpbf16ps, which multiplies pairs of BF16 and
// adds them to FP32. Scores, softmax and sums are FP32; probabilities are rounded to BF16 for the
// second product, and their sum is taken before that rounding.
//
// Tile      48 rows (3 vectors) x 128 keys, as in prefill_avx512.cc, each step two elements deep.
#include <hwy/highway.h>
#include <immintrin.h>

#include "kernels/cpu/prefill_tile.h"

#if HWY_TARGET != HWY_AVX3
#error "compile with the flags of HWY_AVX3 and -mavx512bf16"
#endif

namespace attnd::kernels {
namespace {

struct Avx512Bf16 {
  static constexpr DataType kUnitType = DataType::kBf16;
  static constexpr int kPair = 2;
  static constexpr int kPanel = 8;
  static constexpr int kColumns = 3;
  static constexpr int kTileKeys = 128;
  static constexpr std::uint32_t kSignBits = 0x80008000U;

  using F32 = hn::Vec<hn::ScalableTag<float>>;
  using Units = __m512i;

  static HWY_INLINE Units Load(const std::uint32_t* units) { return _mm512_load_si512(units); }
  static HWY_INLINE Units Broadcast(const std::uint32_t* unit) {
    return _mm512_set1_epi32(static_cast<int>(*unit));
  }
  static HWY_INLINE F32 MultiplyAdd(Units a, Units b, F32 sum) {
    return F32{_mm512_dpbf16_ps(sum.raw, (__m512bh)a, (__m512bh)b)};
  }

  // Degree 4: 2.8e-6, far below the 2^-9 of the rounding to BF16.
  static HWY_INLINE F32 Exp2(F32 x) {
    const __m512 whole = _mm512_roundscale_ps(x.raw, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const F32 fraction{_mm512_sub_ps(x.raw, whole)};
    // For x = -inf the fraction is NaN, and NaN scaled by 2^-inf is 0.
    return F32{_mm512_scalef_ps(PrefillMath<Avx512Bf16>::Exp2Fraction<4>(fraction).raw, whole)};
  }

  // The pair of keys (first, second) of every row becomes one unit of its lane.
  static HWY_INLINE void StoreProbabilities(F32 first, F32 second, std::uint32_t* out) {
    const auto halves = (__m512i)_mm512_cvtne2ps_pbh(second.raw, first.raw);
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    _mm512_store_si512(out, _mm512_permutexvar_epi16(order, halves));
  }

  static void PackValues(const std::uint32_t* const* rows, int num_panels, int panel_stride,
                         std::uint32_t* out) {
    for (int panel = 0; panel < num_panels; ++panel) {
      const auto* even = reinterpret_cast<const __m128i*>(rows[0] + panel * kPanel / 2);
      const auto* odd = reinterpret_cast<const __m128i*>(rows[1] + panel * kPanel / 2);
      const __m128i first = _mm_loadu_si128(even);
      const __m128i second = _mm_loadu_si128(odd);
      auto* to = reinterpret_cast<__m128i*>(out + panel * panel_stride);
      _mm_store_si128(to, _mm_unpacklo_epi16(first, second));
      _mm_store_si128(to + 1, _mm_unpackhi_epi16(first, second));
    }
  }
};

}  // namespace

const PrefillTarget kPrefillAvx512Bf16 = {
    PrefillTile<Avx512Bf16>::kTileRows,
    1U << static_cast<unsigned>(DataType::kBf16),
    PrefillTile<Avx512Bf16>::ScratchBytes,
    PrefillTile<Avx512Bf16>::Run,
};

}  // namespace attnd::kernels
