// Independent chains of one architecture's mma, nothing else.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/ceilings.h"

namespace attnd::kernels::device {

// multiply(c): one mma into c.
template <class Multiply>
__device__ __forceinline__ void RunMmaChains(int iterations, float* sink, Multiply multiply) {
  float c[kMmaChains][4] = {};
  for (int i = 0; i < iterations; ++i) {
#pragma unroll
    for (int chain = 0; chain < kMmaChains; ++chain) multiply(c[chain]);
  }
  float sum = 0.0F;
#pragma unroll
  for (int chain = 0; chain < kMmaChains; ++chain) {
    sum += c[chain][0] + c[chain][1] + c[chain][2] + c[chain][3];
  }
  if (sum == 1.2345F) *sink = sum;  // keeps the chains alive
}

}  // namespace attnd::kernels::device
