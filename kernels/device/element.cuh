// The 16-bit element types of tensor-core kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace attnd::kernels::device {

// Two neighbouring columns in one register, the first in the low half.
__device__ __forceinline__ std::uint32_t PackPair(float first, float second, __half /*element*/) {
  const __half2 pair = __floats2half2_rn(first, second);
  return reinterpret_cast<const std::uint32_t&>(pair);
}
__device__ __forceinline__ std::uint32_t PackPair(float first, float second,
                                                  __nv_bfloat16 /*element*/) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return reinterpret_cast<const std::uint32_t&>(pair);
}

// Both elements of a register times `factor`, rounded once.
__device__ __forceinline__ std::uint32_t ScalePair(std::uint32_t pair, float factor, __half tag) {
  const float2 value = __half22float2(reinterpret_cast<const __half2&>(pair));
  return PackPair(value.x * factor, value.y * factor, tag);
}
__device__ __forceinline__ std::uint32_t ScalePair(std::uint32_t pair, float factor,
                                                   __nv_bfloat16 tag) {
  const float2 value = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair));
  return PackPair(value.x * factor, value.y * factor, tag);
}

}  // namespace attnd::kernels::device
