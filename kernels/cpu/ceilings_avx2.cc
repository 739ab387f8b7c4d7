#include <immintrin.h>

#include "kernels/cpu/ceilings.h"

namespace attnd::kernels {

double RunFp32Avx2(std::int64_t rounds) {
  // Two FMA units with a latency of 4 to 5 cycles need 10 chains; 12 leave room.
  constexpr int kChains = 12;
  // Chains start apart: equal ones would be merged into one. Read through volatile, or the
  // compiler would know every result.
  volatile float one = 1.0F;
  const float first = one;
  const __m256 factor = _mm256_set1_ps(first);
  __m256 sums[kChains];
#pragma GCC unroll 12
  for (int chain = 0; chain < kChains; ++chain)
    sums[chain] = _mm256_set1_ps(first * static_cast<float>(chain));
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int chain = 0; chain < kChains; ++chain) {
      sums[chain] = _mm256_fmadd_ps(sums[chain], factor, factor);
    }
  }
  volatile float sink = 0;
#pragma GCC unroll 12
  for (int chain = 0; chain < kChains; ++chain) sink = _mm256_cvtss_f32(sums[chain]);
  static_cast<void>(sink);
  return 2.0 * 8 * kChains * static_cast<double>(rounds);
}

void ReadAvx2(const std::byte* data, std::int64_t bytes) {
  // Lines ahead of the loads: a hardware prefetcher stops at each 4 KiB page.
  constexpr std::int64_t kAheadBytes = 4096;
  __m256i sum0 = _mm256_setzero_si256();
  __m256i sum1 = sum0;
  __m256i sum2 = sum0;
  __m256i sum3 = sum0;
  for (std::int64_t offset = 0; offset < bytes; offset += 128) {
    const auto* line = reinterpret_cast<const __m256i*>(data + offset);
    _mm_prefetch(reinterpret_cast<const char*>(data + offset + kAheadBytes), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(data + offset + kAheadBytes + 64), _MM_HINT_T0);
    sum0 = _mm256_xor_si256(sum0, _mm256_loadu_si256(line));
    sum1 = _mm256_xor_si256(sum1, _mm256_loadu_si256(line + 1));
    sum2 = _mm256_xor_si256(sum2, _mm256_loadu_si256(line + 2));
    sum3 = _mm256_xor_si256(sum3, _mm256_loadu_si256(line + 3));
  }
  sum0 = _mm256_xor_si256(_mm256_xor_si256(sum0, sum1), _mm256_xor_si256(sum2, sum3));
  volatile int sink = _mm256_cvtsi256_si32(sum0);
  static_cast<void>(sink);
}

}  // namespace attnd::kernels
