#include <immintrin.h>

#include "kernels/cpu/ceilings.h"

namespace attnd::kernels {

double RunBf16Avx512Bf16(std::int64_t rounds) {
  // vdpbf16ps has a latency of 6 cycles; 16 chains cover one a cycle and two a cycle alike.
  constexpr int kChains = 16;
  // Chains start apart: equal ones would be merged into one. Read through volatile, or the
  // compiler would know every result.
  volatile float one = 1.0F;
  const float first = one;
  const __m512bh factor = _mm512_cvtne2ps_pbh(_mm512_set1_ps(first), _mm512_set1_ps(first));
  __m512 sums[kChains];
#pragma GCC unroll 16
  for (int chain = 0; chain < kChains; ++chain)
    sums[chain] = _mm512_set1_ps(first * static_cast<float>(chain));
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int chain = 0; chain < kChains; ++chain) {
      sums[chain] = _mm512_dpbf16_ps(sums[chain], factor, factor);
    }
  }
  volatile float sink = 0;
#pragma GCC unroll 16
  for (int chain = 0; chain < kChains; ++chain) sink = _mm512_cvtss_f32(sums[chain]);
  static_cast<void>(sink);
  return 2.0 * 32 * kChains * static_cast<double>(rounds);
}

}  // namespace attnd::kernels
