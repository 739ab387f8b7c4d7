// Which SIMD targets this machine can run: instruction sets by CPUID, register state by XCR0.
#include <cpuid.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "kernels/attention_kernels.h"

namespace attnd::kernels {
namespace {

constexpr std::array<const char*, 5> kTargetNames = {"auto", "scalar", "avx2", "avx512",
                                                     "avx512_bf16"};

struct CpuidLeaf {
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidLeaf Cpuid(std::uint32_t leaf, std::uint32_t subleaf) {
  CpuidLeaf result;
  if (__get_cpuid_count(leaf, subleaf, &result.eax, &result.ebx, &result.ecx, &result.edx) == 0) {
    return {};
  }
  return result;
}

bool HasBits(std::uint32_t value, std::uint32_t bits) { return (value & bits) == bits; }

std::uint64_t ReadXcr0() {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (std::uint64_t{high} << 32U) | low;
}

// The whole instruction sets that the target's files are compiled for (kernels/CMakeLists.txt):
// one missing member is an illegal instruction.
CpuTarget DetectWidestTarget() {
  constexpr std::uint32_t kLeaf1 = bit_FMA | bit_PCLMUL | bit_MOVBE | bit_POPCNT | bit_AES |
                                   bit_OSXSAVE | bit_AVX | bit_F16C | bit_SSSE3 | bit_SSE4_1 |
                                   bit_SSE4_2;
  constexpr std::uint32_t kLeaf7Avx2 = bit_BMI | bit_BMI2 | bit_AVX2;
  constexpr std::uint32_t kLeaf7Avx512 =
      bit_AVX512F | bit_AVX512CD | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
  constexpr std::uint32_t kLeaf7Sub1EaxAvx512Bf16 = 1U << 5U;
  constexpr std::uint32_t kExtendedEcxLzcnt = 1U << 5U;
  constexpr std::uint64_t kXcr0Avx = 0x6;
  constexpr std::uint64_t kXcr0Avx512 = 0xE6;

  if (!HasBits(Cpuid(1, 0).ecx, kLeaf1)) return CpuTarget::kScalar;
  const std::uint64_t xcr0 = ReadXcr0();
  const CpuidLeaf leaf7 = Cpuid(7, 0);
  if ((xcr0 & kXcr0Avx) != kXcr0Avx || !HasBits(leaf7.ebx, kLeaf7Avx2) ||
      !HasBits(Cpuid(0x80000001U, 0).ecx, kExtendedEcxLzcnt)) {
    return CpuTarget::kScalar;
  }
  if ((xcr0 & kXcr0Avx512) != kXcr0Avx512 || !HasBits(leaf7.ebx, kLeaf7Avx512)) {
    return CpuTarget::kAvx2;
  }
  const bool has_bf16 = leaf7.eax >= 1 && HasBits(Cpuid(7, 1).eax, kLeaf7Sub1EaxAvx512Bf16);
  return has_bf16 ? CpuTarget::kAvx512Bf16 : CpuTarget::kAvx512;
}

CpuTarget WidestTarget() {
  static const CpuTarget widest = DetectWidestTarget();
  return widest;
}

bool IsIntel() {
  const CpuidLeaf leaf = Cpuid(0, 0);
  return leaf.ebx == signature_INTEL_ebx && leaf.edx == signature_INTEL_edx &&
         leaf.ecx == signature_INTEL_ecx;
}

}  // namespace

CpuTarget BestCpuTarget() {
  // Intel's cores run vdpbf16ps at half the rate of FP32 multiply-adds, AMD's at twice that rate.
  static const CpuTarget best =
      WidestTarget() == CpuTarget::kAvx512Bf16 && IsIntel() ? CpuTarget::kAvx512 : WidestTarget();
  return best;
}

bool CpuTargetSupported(CpuTarget target) { return target <= WidestTarget(); }

const char* CpuTargetName(CpuTarget target) {
  return kTargetNames[static_cast<std::size_t>(target)];
}

bool ParseCpuTarget(const char* name, CpuTarget& target) {
  for (std::size_t i = 0; i < kTargetNames.size(); ++i) {
    if (std::strcmp(name, kTargetNames[i]) == 0) {
      target = static_cast<CpuTarget>(i);
      return true;
    }
  }
  return false;
}

}  // namespace attnd::kernels
