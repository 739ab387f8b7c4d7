// ld.shared: PTX ISA, "Data movement and conversion instructions: ld".
#pragma once

#include <cstdint>

namespace attnd::kernels::ptx {

// Two 32-bit words at an 8-byte aligned address. Through a C++ reference the compiler forms the
// shared window's base anew at each use, about 40 cycles that a main loop can feel.
__device__ __forceinline__ int2 LdShared64(std::uint32_t shared_address) {
  int2 value;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];\n"
               : "=r"(value.x), "=r"(value.y)
               : "r"(shared_address)
               : "memory");
  return value;
}

}  // namespace attnd::kernels::ptx
