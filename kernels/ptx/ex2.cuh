// ex2.approx: PTX ISA, "Floating point instructions: ex2". 2 ulp over the whole range; -inf gives
// 0, NaN gives NaN. Results below 2^-126 are flushed to 0.
#pragma once

namespace attnd::kernels::ptx {

__device__ __forceinline__ float Ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace attnd::kernels::ptx
