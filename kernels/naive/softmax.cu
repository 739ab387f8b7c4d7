// The softmax between naive's two products: scores in FP32 -> probabilities in the input's type.
//
// Algorithm  One CTA a row. A thread keeps up to kVectors x 4 scores in registers, so that every
//            score is read once: rows up to 16384 keys. Longer rows are read twice (the second time
//            mostly from the L2). Scale, cap, bias, ALiBi and masks are applied here, to every
//            score of the rectangle; probabilities leave normalised, the sink in the denominator.
// Roofline   Per score 4 bytes written by the first product, 4 read here, 2 (FP32: 4) written here
//            and 2 (4) read by the second: 12 (16) bytes, so 2.6 ps (H200, 4.6 TB/s) a score, and
//            that, not the 4 * head_dim FLOP, binds the whole row: at d 128 1.4 ms of DRAM against
//            0.4 ms of tensor cores for 8 x 16 heads x 2048^2, hence at most 196 TFLOP/s there.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/device/attention_mask.cuh"
#include "kernels/device/decode_rows.cuh"
#include "kernels/device/element.cuh"
#include "kernels/device/score_options.cuh"
#include "kernels/naive/naive_kernels.h"

namespace attnd::kernels::naive {
namespace {

constexpr int kVectors = 8;  // of 4 scores, in a thread's registers
constexpr int kMaxThreads = 512;

// Largest (kMaximum) or sum over the CTA, in all threads.
template <bool kMaximum>
__device__ __forceinline__ float Reduce(float value, float* shared) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(0xffffffffU, value, step);
    value = kMaximum ? fmaxf(value, other) : value + other;
  }
  if (blockDim.x == 32) return value;
  __syncthreads();  // the values of a reduction before this one have been read
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  float total = shared[0];
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) {
    total = kMaximum ? fmaxf(total, shared[warp]) : total + shared[warp];
  }
  return total;
}

__device__ __forceinline__ void Store(float* p, const float4& value) {
  *reinterpret_cast<float4*>(p) = value;
}
template <class Element>
__device__ __forceinline__ void Store(Element* p, const float4& value) {
  *reinterpret_cast<uint2*>(p) = make_uint2(device::PackPair(value.x, value.y, Element{}),
                                            device::PackPair(value.z, value.w, Element{}));
}

// A row's scores as base-2 logits, -inf where hidden.
struct RowLogits {
  const float* scores;
  device::ScoreOptions options;
  int token, lower, upper;

  __device__ __forceinline__ float Log2(float score, int key) const {
    if (key < lower || key >= upper) return -INFINITY;
    return __fmul_rn(options.Logit(score, token, key), device::kLog2E);
  }
  __device__ __forceinline__ float4 Read(int key) const {
    const float4 score = *reinterpret_cast<const float4*>(scores + key);
    return make_float4(Log2(score.x, key), Log2(score.y, key + 1), Log2(score.z, key + 2),
                       Log2(score.w, key + 3));
  }
};

__device__ __forceinline__ float Largest(const float4& value) {
  return fmaxf(fmaxf(value.x, value.y), fmaxf(value.z, value.w));
}
// 2^(logit - base); a row that sees nothing has base 0 and only logits of -inf.
__device__ __forceinline__ float4 Weights(const float4& logit, float base) {
  return make_float4(ptx::Ex2(__fadd_rn(logit.x, -base)), ptx::Ex2(__fadd_rn(logit.y, -base)),
                     ptx::Ex2(__fadd_rn(logit.z, -base)), ptx::Ex2(__fadd_rn(logit.w, -base)));
}
__device__ __forceinline__ float Sum(const float4& value) {
  return (value.x + value.y) + (value.z + value.w);
}
__device__ __forceinline__ float4 Times(const float4& value, float factor) {
  return make_float4(value.x * factor, value.y * factor, value.z * factor, value.w * factor);
}

// kInRegisters: pitch <= 4 * kVectors * blockDim.x.
template <class Element, bool kInRegisters>
__global__ void __launch_bounds__(kMaxThreads)
    SoftmaxKernel(const __grid_constant__ CudaLaunchParams params,
                  const __grid_constant__ ChunkMatrices at) {
  __shared__ float shared[32];
  const NaiveChunk& chunk = at.chunk;
  const std::int64_t row = blockIdx.x;
  const int token = static_cast<int>(row % chunk.query_rows);
  const std::int64_t head_row = row / chunk.query_rows;
  const int head = static_cast<int>(head_row % params.attention.num_heads);
  const AttentionSequence& sequence =
      params.attention.sequences[chunk.first_sequence + head_row / params.attention.num_heads];
  if (token >= sequence.query_length) return;
  const device::VisibleKeys visible(sequence);
  const RowLogits logits{at.s + row * chunk.pitch,
                         device::ScoreOptions(sequence, head, sequence.softmax_scale), token,
                         visible.Lower(token), visible.Upper(token)};
  Element* const p = static_cast<Element*>(at.p) + row * chunk.pitch;

  const int step = static_cast<int>(blockDim.x) * 4;
  const int first = static_cast<int>(threadIdx.x) * 4;
  float4 held[kInRegisters ? kVectors : 1];
  float largest = -INFINITY;
  if constexpr (kInRegisters) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int key = first + i * step;
      held[i] = key < chunk.pitch ? logits.Read(key)
                                  : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
      largest = fmaxf(largest, Largest(held[i]));
    }
  } else {
    for (int key = first; key < chunk.pitch; key += step) {
      largest = fmaxf(largest, Largest(logits.Read(key)));
    }
  }
  const float row_max = Reduce<true>(largest, shared);
  const float base = row_max == -INFINITY ? 0.0F : row_max;
  float sum = 0.0F;
  if constexpr (kInRegisters) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      held[i] = Weights(held[i], base);
      sum += Sum(held[i]);
    }
  } else {
    for (int key = first; key < chunk.pitch; key += step) {
      sum += Sum(Weights(logits.Read(key), base));
    }
  }
  const device::RowResult result = device::FinishRow(row_max, Reduce<false>(sum, shared),
                                                     device::SinkLog2(params, sequence, head));
  if constexpr (kInRegisters) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int key = first + i * step;
      if (key < chunk.pitch) Store(p + key, Times(held[i], result.factor));
    }
  } else {
    for (int key = first; key < chunk.pitch; key += step) {
      Store(p + key, Times(Weights(logits.Read(key), base), result.factor));
    }
  }
  if (threadIdx.x == 0 && sequence.lse != nullptr) {
    sequence.lse[static_cast<std::int64_t>(token) * params.attention.num_heads + head] = result.lse;
  }
}

}  // namespace

template <class Element>
cudaError_t LaunchSoftmax(const CudaLaunchParams& params, const ChunkMatrices& matrices,
                          cudaStream_t stream) {
  const NaiveChunk& chunk = matrices.chunk;
  const auto rows = static_cast<unsigned>(std::int64_t{chunk.num_sequences} *
                                          params.attention.num_heads * chunk.query_rows);
  const int wanted = (chunk.pitch + 4 * kVectors - 1) / (4 * kVectors);
  const int threads = wanted < 32 ? 32 : (wanted + 31) / 32 * 32;
  if (threads <= kMaxThreads) {
    SoftmaxKernel<Element, true>
        <<<rows, static_cast<unsigned>(threads), 0, stream>>>(params, matrices);
  } else {
    SoftmaxKernel<Element, false><<<rows, kMaxThreads, 0, stream>>>(params, matrices);
  }
  return cudaGetLastError();
}

template cudaError_t LaunchSoftmax<float>(const CudaLaunchParams&, const ChunkMatrices&,
                                          cudaStream_t);
template cudaError_t LaunchSoftmax<__half>(const CudaLaunchParams&, const ChunkMatrices&,
                                           cudaStream_t);
template cudaError_t LaunchSoftmax<__nv_bfloat16>(const CudaLaunchParams&, const ChunkMatrices&,
                                                  cudaStream_t);

}  // namespace attnd::kernels::naive
