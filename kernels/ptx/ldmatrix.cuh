// ldmatrix: PTX ISA, "Warp-level matrix load instruction: ldmatrix" (sm_75 and newer).
#pragma once

#include <cstdint>

namespace attnd::kernels::ptx {

// Four 8x8 matrices of 16-bit elements; lanes 8i to 8i+7 give the row addresses of matrix i.
__device__ __forceinline__ void LdmatrixX4(std::uint32_t (&r)[4], std::uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address)
               : "memory");
}

// The same with every matrix transposed on the way.
__device__ __forceinline__ void LdmatrixX4Trans(std::uint32_t (&r)[4],
                                                std::uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address)
               : "memory");
}

}  // namespace attnd::kernels::ptx
