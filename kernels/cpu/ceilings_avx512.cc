#include <immintrin.h>

#include "kernels/cpu/ceilings.h"

namespace attnd::kernels {

double RunFp32Avx512(std::int64_t rounds) {
  constexpr int kChains = 12;
  // Chains start apart: equal ones would be merged into one. Read through volatile, or the
  // compiler would know every result.
  volatile float one = 1.0F;
  const float first = one;
  const __m512 factor = _mm512_set1_ps(first);
  __m512 sums[kChains];
#pragma GCC unroll 12
  for (int chain = 0; chain < kChains; ++chain)
    sums[chain] = _mm512_set1_ps(first * static_cast<float>(chain));
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int chain = 0; chain < kChains; ++chain) {
      sums[chain] = _mm512_fmadd_ps(sums[chain], factor, factor);
    }
  }
  volatile float sink = 0;
#pragma GCC unroll 12
  for (int chain = 0; chain < kChains; ++chain) sink = _mm512_cvtss_f32(sums[chain]);
  static_cast<void>(sink);
  return 2.0 * 16 * kChains * static_cast<double>(rounds);
}

}  // namespace attnd::kernels
