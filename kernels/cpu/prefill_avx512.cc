// Fused prefill for AVX-512: FP32, and FP16 and BF16 widened to FP32 when they are packed.
//
// Tile      48 rows (3 vectors) x 128 keys. 8 x 3 accumulators, 3 row vectors and one broadcast use
//           28 of 32 registers; 24 multiply-adds a step take 11 loads.
#include <hwy/highway.h>
#include <immintrin.h>

#include "kernels/cpu/prefill_tile.h"

#if HWY_TARGET != HWY_AVX3
#error "compile with the flags of HWY_AVX3 and nothing newer"
#endif

namespace attnd::kernels {
namespace {

struct Avx512 {
  static constexpr DataType kUnitType = DataType::kFp32;
  static constexpr int kPair = 1;
  static constexpr int kPanel = 8;
  static constexpr int kColumns = 3;
  static constexpr int kTileKeys = 128;
  static constexpr std::uint32_t kSignBits = 0x80000000U;

  using F32 = hn::Vec<hn::ScalableTag<float>>;
  using Units = F32;

  static HWY_INLINE Units Load(const std::uint32_t* units) { return Units{_mm512_load_ps(units)}; }
  static HWY_INLINE Units Broadcast(const std::uint32_t* unit) {
    return Units{_mm512_set1_ps(*reinterpret_cast<const float*>(unit))};
  }
  static HWY_INLINE F32 MultiplyAdd(Units a, Units b, F32 sum) { return hn::MulAdd(a, b, sum); }

  static HWY_INLINE F32 Exp2(F32 x) {
    const __m512 whole = _mm512_roundscale_ps(x.raw, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const F32 fraction{_mm512_sub_ps(x.raw, whole)};
    // For x = -inf the fraction is NaN, and NaN scaled by 2^-inf is 0.
    return F32{_mm512_scalef_ps(PrefillMath<Avx512>::Exp2Fraction<5>(fraction).raw, whole)};
  }

  static HWY_INLINE void StoreProbabilities(F32 p, std::uint32_t* out) {
    _mm512_store_ps(out, p.raw);
  }

  static void PackValues(const std::uint32_t* const* rows, int num_panels, int panel_stride,
                         std::uint32_t* out) {
    for (int panel = 0; panel < num_panels; ++panel) {
      _mm256_store_si256(
          reinterpret_cast<__m256i*>(out + panel * panel_stride),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[0] + panel * kPanel)));
    }
  }
};

}  // namespace

const PrefillTarget kPrefillAvx512 = {
    PrefillTile<Avx512>::kTileRows,
    (1U << static_cast<unsigned>(DataType::kFp32)) |
        (1U << static_cast<unsigned>(DataType::kFp16)) |
        (1U << static_cast<unsigned>(DataType::kBf16)),
    PrefillTile<Avx512>::ScratchBytes,
    PrefillTile<Avx512>::Run,
};

}  // namespace attnd::kernels
