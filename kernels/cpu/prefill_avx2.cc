// Fused prefill for AVX2 with FMA: FP32, and FP16 and BF16 widened to FP32 when they are packed.
//
// Tile      24 rows (3 vectors) x 128 keys. 4 x 3 accumulators, 3 row vectors and one broadcast use
//           all 16 registers; 12 multiply-adds a step take 7 loads.
#include <hwy/highway.h>

#include "kernels/cpu/prefill_tile.h"

#if HWY_TARGET != HWY_AVX2
#error "compile with the flags of HWY_AVX2 and nothing newer"
#endif

namespace attnd::kernels {
namespace {

struct Avx2 {
  static constexpr DataType kUnitType = DataType::kFp32;
  static constexpr int kPair = 1;
  static constexpr int kPanel = 4;
  static constexpr int kColumns = 3;
  static constexpr int kTileKeys = 128;
  static constexpr std::uint32_t kSignBits = 0x80000000U;

  static constexpr hn::ScalableTag<float> kF32{};
  using F32 = hn::Vec<decltype(kF32)>;
  using Units = F32;

  static HWY_INLINE Units Load(const std::uint32_t* units) {
    return hn::Load(kF32, reinterpret_cast<const float*>(units));
  }
  static HWY_INLINE Units Broadcast(const std::uint32_t* unit) {
    return hn::Set(kF32, *reinterpret_cast<const float*>(unit));
  }
  static HWY_INLINE F32 MultiplyAdd(Units a, Units b, F32 sum) { return hn::MulAdd(a, b, sum); }
  static HWY_INLINE F32 Exp2(F32 x) { return PrefillMath<Avx2>::Exp2ByShift<5>(x); }
  static HWY_INLINE void StoreProbabilities(F32 p, std::uint32_t* out) {
    hn::Store(p, kF32, reinterpret_cast<float*>(out));
  }

  static void PackValues(const std::uint32_t* const* rows, int num_panels, int panel_stride,
                         std::uint32_t* out) {
    constexpr hn::Full128<std::uint32_t> kPanelUnits;
    for (int panel = 0; panel < num_panels; ++panel) {
      hn::Store(hn::LoadU(kPanelUnits, rows[0] + panel * kPanel), kPanelUnits,
                out + panel * panel_stride);
    }
  }
};

}  // namespace

const PrefillTarget kPrefillAvx2 = {
    PrefillTile<Avx2>::kTileRows,
    (1U << static_cast<unsigned>(DataType::kFp32)) |
        (1U << static_cast<unsigned>(DataType::kFp16)) |
        (1U << static_cast<unsigned>(DataType::kBf16)),
    PrefillTile<Avx2>::ScratchBytes,
    PrefillTile<Avx2>::Run,
};

}  // namespace attnd::kernels
