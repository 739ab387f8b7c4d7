// Tag of the sm80 folder: bodies shared between folders take it as a template parameter, so that
// their instantiations carry different names and the linker cannot merge them.
#pragma once

#include "kernels/ptx/mma_sync.cuh"

namespace attnd::kernels::sm80 {

struct Arch {
  template <class Element>
  __device__ __forceinline__ static void Mma(float (&c)[4], const std::uint32_t (&a)[4],
                                             std::uint32_t b0, std::uint32_t b1) {
    ptx::MmaM16N8K16(c, a, b0, b1, Element{});
  }
};

}  // namespace attnd::kernels::sm80
