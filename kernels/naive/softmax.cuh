// The softmax between naive's two products: scores in FP32 -> probabilities in the input's type.
//
// Algorithm  Rows up to 2048 keys: a warp a row. Longer ones: a CTA a row. Either way a thread asks
//            for all its scores at once and keeps them in registers, so that every score is read
//            once; only rows above 16384 keys are read three times. Scale, cap, bias, ALiBi and
//            masks are applied here, to every score of the rectangle; probabilities leave
//            normalised, the sink in the denominator.
// Roofline   Per score 4 bytes written by the first product, 4 read here, 2 (FP32: 4) written here
//            and 2 (4) read by the second: 12 (16) bytes, so 2.6 ps (H200, 4.6 TB/s) a score, and
//            that, not the 4 * head_dim FLOP, binds the whole row: at d 128 1.4 ms of DRAM against
//            0.4 ms of tensor cores for 8 x 16 heads x 2048^2, hence at most 196 TFLOP/s there.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/device/attention_mask.cuh"
#include "kernels/device/decode_rows.cuh"
#include "kernels/device/element.cuh"
#include "kernels/device/score_options.cuh"
#include "kernels/naive/naive_kernels.h"

namespace attnd::kernels::naive {

inline constexpr int kRowsPerCta = 4;  // where a warp has a row
inline constexpr int kMaxRowThreads = 512;
inline constexpr int kCtaVectors = 8;  // of 4 scores, in a thread's registers

// Largest (kMaximum) or sum over the threads of a row, in all of them.
template <bool kMaximum, bool kWarpRow>
__device__ __forceinline__ float Reduce(float value, float* shared) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(0xffffffffU, value, step);
    value = kMaximum ? fmaxf(value, other) : value + other;
  }
  if constexpr (kWarpRow) return value;
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

// Turns raw scores into base-2 logits, -inf where hidden.
struct RowLogits {
  device::ScoreOptions options;
  float c;  // log2(e) * scale: all there is to do where `plain`
  bool plain, hides;
  int token, lower, upper;

  __device__ __forceinline__ RowLogits(const AttentionSequence& sequence, int head, int token_,
                                       int pitch)
      : options(sequence, head, sequence.softmax_scale),
        c(sequence.softmax_scale * device::kLog2E),
        plain(!(sequence.logits_soft_cap > 0.0F) && sequence.bias == nullptr &&
              sequence.alibi_slopes == nullptr),
        token(token_) {
    const device::VisibleKeys visible(sequence);
    lower = visible.Lower(token);
    upper = visible.Upper(token);
    hides = lower > 0 || upper < pitch;
  }
  __device__ __forceinline__ float Masked(float logit, int key) const {
    return key >= lower && key < upper ? logit : -INFINITY;
  }
  __device__ __forceinline__ float4 operator()(const float4& score, int key) const {
    float4 logit;
    if (plain) {
      logit = make_float4(score.x * c, score.y * c, score.z * c, score.w * c);
    } else {
      logit = make_float4(__fmul_rn(options.Logit(score.x, token, key), device::kLog2E),
                          __fmul_rn(options.Logit(score.y, token, key + 1), device::kLog2E),
                          __fmul_rn(options.Logit(score.z, token, key + 2), device::kLog2E),
                          __fmul_rn(options.Logit(score.w, token, key + 3), device::kLog2E));
    }
    if (!hides) return logit;
    return make_float4(Masked(logit.x, key), Masked(logit.y, key + 1), Masked(logit.z, key + 2),
                       Masked(logit.w, key + 3));
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

// kVectors: of 4 scores a thread, pitch <= 4 * kVectors * threads of a row; 0: not in registers.
template <class Element, bool kWarpRow, int kVectors>
__global__ void __launch_bounds__(kWarpRow ? 32 * kRowsPerCta : kMaxRowThreads)
    SoftmaxKernel(const __grid_constant__ CudaLaunchParams params,
                  const __grid_constant__ ChunkMatrices at, std::int64_t rows) {
  __shared__ float shared[kWarpRow ? 1 : kMaxRowThreads / 32];
  const NaiveChunk& chunk = at.chunk;
  const std::int64_t row =
      kWarpRow ? static_cast<std::int64_t>(blockIdx.x) * kRowsPerCta + threadIdx.x / 32
               : static_cast<std::int64_t>(blockIdx.x);
  if (row >= rows) return;
  const int first = static_cast<int>(kWarpRow ? threadIdx.x % 32 : threadIdx.x) * 4;
  const int step = static_cast<int>(kWarpRow ? 32 : blockDim.x) * 4;
  const float* const scores = at.s + row * chunk.pitch;
  const auto read = [scores](int key) {
    return __ldcs(reinterpret_cast<const float4*>(scores + key));
  };
  constexpr float4 kHidden = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
  // All loads start before anything else is looked at.
  float4 held[kVectors == 0 ? 1 : kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    held[i] = kHidden;
    if (first + i * step < chunk.pitch) held[i] = read(first + i * step);
  }

  const int token = static_cast<int>(row % chunk.query_rows);
  const std::int64_t head_row = row / chunk.query_rows;
  const int head = static_cast<int>(head_row % params.attention.num_heads);
  const AttentionSequence& sequence =
      params.attention.sequences[chunk.first_sequence + head_row / params.attention.num_heads];
  if (token >= sequence.query_length) return;
  const RowLogits logits(sequence, head, token, chunk.pitch);
  Element* const p = static_cast<Element*>(at.p) + row * chunk.pitch;

  float largest = -INFINITY;
  if constexpr (kVectors > 0) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int key = first + i * step;
      held[i] = key < chunk.pitch ? logits(held[i], key) : kHidden;
      largest = fmaxf(largest, Largest(held[i]));
    }
  } else {
    for (int key = first; key < chunk.pitch; key += step) {
      largest = fmaxf(largest, Largest(logits(read(key), key)));
    }
  }
  const float row_max = Reduce<true, kWarpRow>(largest, shared);
  const float base = row_max == -INFINITY ? 0.0F : row_max;
  float sum = 0.0F;
  if constexpr (kVectors > 0) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      held[i] = Weights(held[i], base);
      sum += Sum(held[i]);
    }
  } else {
    for (int key = first; key < chunk.pitch; key += step) {
      sum += Sum(Weights(logits(read(key), key), base));
    }
  }
  const device::RowResult result = device::FinishRow(row_max, Reduce<false, kWarpRow>(sum, shared),
                                                     device::SinkLog2(params, sequence, head));
  if constexpr (kVectors > 0) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int key = first + i * step;
      if (key < chunk.pitch) Store(p + key, Times(held[i], result.factor));
    }
  } else {
    for (int key = first; key < chunk.pitch; key += step) {
      Store(p + key, Times(Weights(logits(read(key), key), base), result.factor));
    }
  }
  if (first == 0 && sequence.lse != nullptr) {
    sequence.lse[static_cast<std::int64_t>(token) * params.attention.num_heads + head] = result.lse;
  }
}

template <class Element>
cudaError_t LaunchSoftmax(const CudaLaunchParams& params, const ChunkMatrices& matrices,
                          cudaStream_t stream) {
  const NaiveChunk& chunk = matrices.chunk;
  const std::int64_t rows =
      std::int64_t{chunk.num_sequences} * params.attention.num_heads * chunk.query_rows;
  const auto launch = [&](auto kernel, std::int64_t ctas, int threads) {
    kernel<<<static_cast<unsigned>(ctas), static_cast<unsigned>(threads), 0, stream>>>(
        params, matrices, rows);
    return cudaGetLastError();
  };
  constexpr int kWarpThreads = 32 * kRowsPerCta;
  const std::int64_t warp_ctas = (rows + kRowsPerCta - 1) / kRowsPerCta;
  if (chunk.pitch <= 512) return launch(SoftmaxKernel<Element, true, 4>, warp_ctas, kWarpThreads);
  if (chunk.pitch <= 1024) return launch(SoftmaxKernel<Element, true, 8>, warp_ctas, kWarpThreads);
  if (chunk.pitch <= 2048) return launch(SoftmaxKernel<Element, true, 16>, warp_ctas, kWarpThreads);
  const int threads = (chunk.pitch + 128 * kCtaVectors - 1) / (128 * kCtaVectors) * 32;
  if (threads <= kMaxRowThreads) {
    return launch(SoftmaxKernel<Element, false, kCtaVectors>, rows, threads);
  }
  return launch(SoftmaxKernel<Element, false, 0>, rows, kMaxRowThreads);
}

}  // namespace attnd::kernels::naive
