// Tag of the sm75 folder: bodies shared between folders take it as a template parameter, so that
// their instantiations carry different names and the linker cannot merge them.
#pragma once

#include "kernels/ptx/mma_sync.cuh"

namespace attnd::kernels::sm75 {

struct Arch {
  // A 16x8x16 product is two of Turing's 16x8x8; the fragments lie alike in registers.
  template <class Element>
  __device__ __forceinline__ static void Mma(float (&c)[4], const std::uint32_t (&a)[4],
                                             std::uint32_t b0, std::uint32_t b1) {
    ptx::MmaM16N8K8(c, a[0], a[1], b0, Element{});
    ptx::MmaM16N8K8(c, a[2], a[3], b1, Element{});
  }
};

}  // namespace attnd::kernels::sm75
