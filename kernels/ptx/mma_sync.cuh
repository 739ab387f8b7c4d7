// mma.sync: PTX ISA, "Warp-level matrix instructions: mma". FP32 accumulators, A row-major, B
// column-major. Fragments (lane = 4 * group + quad): A register pairs hold rows group and group + 8
// at columns 2 * quad; B holds column `group` at rows 2 * quad; C holds rows group (c[0], c[1]) and
// group + 8 (c[2], c[3]) at columns 2 * quad, 2 * quad + 1.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace attnd::kernels::ptx {

// m16n8k8, sm_75 and newer: a[0] rows group, a[1] rows group + 8.
__device__ __forceinline__ void MmaM16N8K8(float (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                           std::uint32_t b, __half /*element*/) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, "
      "%2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(b));
}

// m16n8k16, sm_80 and newer: a[0], a[1] columns 0 to 7, a[2], a[3] columns 8 to 15; b0, b1 alike.
__device__ __forceinline__ void MmaM16N8K16(float (&c)[4], const std::uint32_t (&a)[4],
                                            std::uint32_t b0, std::uint32_t b1,
                                            __half /*element*/) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void MmaM16N8K16(float (&c)[4], const std::uint32_t (&a)[4],
                                            std::uint32_t b0, std::uint32_t b1,
                                            __nv_bfloat16 /*element*/) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace attnd::kernels::ptx
