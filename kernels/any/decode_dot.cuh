// Fused decode without tensor cores: few query rows, long paged KV, FP32 multiply-adds.
//
// Algorithm  One CTA owns (sequence, KV head, split, up to kRows query rows). The lanes of a warp
//            form groups that each hold one key's row, 16 bytes a lane; a group keeps its own
//            (row_max, row_sum, accumulator) for its keys, so nothing is exchanged but the dot
//            products' partial sums. States meet at the end: groups by shuffles, warps in shared
//            memory. Splits are planned on the host; any/combine_splits merges them.
// Warps      8; a warp takes kKeysPerStep neighbouring keys, warps interleaved.
// Rows       1 (no group, one token) or 4 a pass: more would cost registers that loads in flight
//            need. Which it is, the batch decides: both give a row the same bits, since these files
//            are compiled without contraction.
// Roofline   DRAM-bound: an H200 multiprocessor gets 20 bytes a clock, 5 FP32 elements of K or V,
//            each 1 (4) multiply-adds for 128 lanes. In flight kUnroll x 2 x 16 bytes a lane,
//            32 KiB a CTA.
// Limits     a hidden key is skipped, never multiplied. Contiguous rows and addresses aligned to 16
//            bytes, lengths up to kMaxDeviceTokens.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/any/decode_dot.h"
#include "kernels/any/launch_decode.cuh"
#include "kernels/cuda/prepare_kernel.h"
#include "kernels/device/decode_rows.cuh"
#include "kernels/device/kv_source.cuh"

namespace attnd::kernels::any {

template <class Element, int kHeadDim_, int kRows_>
struct DotTile {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kRows = kRows_;
  static constexpr int kWarps = 8;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kChunk = 16 / static_cast<int>(sizeof(Element));  // elements of a load
  static constexpr int kChunks = kHeadDim / kChunk;                      // of a row
  static constexpr int kGroupLanes = kChunks < 32 ? kChunks : 32;
  static constexpr int kLaneChunks = kChunks / kGroupLanes;
  static constexpr int kGroups = 32 / kGroupLanes;  // keys of a warp at a time
  static constexpr int kUnroll = kLaneChunks == 1 ? 4 : 2;
  static constexpr int kKeysPerStep = kGroups * kUnroll;
  static constexpr int kDims = kLaneChunks * kChunk;  // of a lane

  struct SharedMemory {
    float accumulator[kWarps][kRows][kHeadDim];
    float row_max[kWarps][kRows];
    float row_sum[kWarps][kRows];
    device::KvSource source;
  };
};

__device__ __forceinline__ void Unpack(const uint4& from, float (&to)[4]) {
  to[0] = __uint_as_float(from.x);
  to[1] = __uint_as_float(from.y);
  to[2] = __uint_as_float(from.z);
  to[3] = __uint_as_float(from.w);
}
// BF16 is the upper half of an FP32 number.
__device__ __forceinline__ void Unpack(const uint4& from, float (&to)[8]) {
  const std::uint32_t words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = __uint_as_float(words[i] << 16);
    to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
  }
}

__device__ __forceinline__ float DotToFloat(float value) { return value; }
__device__ __forceinline__ float DotToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }

// The states of a warp's groups of lanes into one.
template <class Tile>
__device__ __forceinline__ void MergeGroups(float (&row_max)[Tile::kRows],
                                            float (&row_sum)[Tile::kRows],
                                            float (&accumulator)[Tile::kRows][Tile::kDims]) {
#pragma unroll
  for (int step = Tile::kGroupLanes; step < 32; step *= 2) {
#pragma unroll
    for (int r = 0; r < Tile::kRows; ++r) {
      const float other_max = __shfl_xor_sync(0xffffffffU, row_max[r], step);
      const float other_sum = __shfl_xor_sync(0xffffffffU, row_sum[r], step);
      const float merged = fmaxf(row_max[r], other_max);
      // A group that saw no key holds zeros; its row_max of -inf would make a NaN.
      const float mine = row_max[r] == -INFINITY ? 1.0F : ptx::Ex2(row_max[r] - merged);
      const float theirs = other_max == -INFINITY ? 1.0F : ptx::Ex2(other_max - merged);
      row_max[r] = merged;
      row_sum[r] = row_sum[r] * mine + other_sum * theirs;
#pragma unroll
      for (int d = 0; d < Tile::kDims; ++d) {
        const float other = __shfl_xor_sync(0xffffffffU, accumulator[r][d], step);
        accumulator[r][d] = accumulator[r][d] * mine + other * theirs;
      }
    }
  }
}

template <class Element, int kHeadDim, int kRows>
__global__ void __launch_bounds__(DotTile<Element, kHeadDim, kRows>::kThreads)
    DecodeDotKernel(const __grid_constant__ CudaLaunchParams params) {
  using Tile = DotTile<Element, kHeadDim, kRows>;
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<typename Tile::SharedMemory*>(shared_bytes);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int passes = (params.max_query_rows + kRows - 1) / kRows;
  const int unit = blockIdx.x / passes;
  const int first_row = blockIdx.x % passes * kRows;
  const int kv_head = unit % params.attention.num_kv_heads;
  const DecodeTask task = params.decode_tasks[unit / params.attention.num_kv_heads];
  const AttentionSequence sequence = params.attention.sequences[task.sequence];
  const DecodeSequencePlan plan = params.decode_plans[task.sequence];  // asked for early
  const device::DecodeRows rows(params, sequence, kv_head);
  if (first_row >= rows.num_rows) return;
  const device::VisibleKeys visible(sequence);
  if (threadIdx.x == 0) shared.source.Set(params, sequence, kv_head, sizeof(Element));

  // This lane's chunks of every row: chunk `group_lane + c * kGroupLanes` for c in kLaneChunks.
  const int group_lane = lane % Tile::kGroupLanes;
  const int group = lane / Tile::kGroupLanes;
  const int head_dim = params.attention.head_dim;
  float q[kRows][Tile::kDims];
  int lower[kRows], upper[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = min(first_row + r, rows.num_rows - 1);
    const auto* from = static_cast<const Element*>(sequence.q) +
                       rows.Token(row) * sequence.q_token_stride +
                       rows.Head(row) * sequence.q_head_stride;
    lower[r] = visible.Lower(rows.Token(row));
    upper[r] = visible.Upper(rows.Token(row));
#pragma unroll
    for (int d = 0; d < Tile::kDims; ++d) {
      const int dim =
          (group_lane + d / Tile::kChunk * Tile::kGroupLanes) * Tile::kChunk + d % Tile::kChunk;
      q[r][d] = dim < head_dim ? DotToFloat(from[dim]) : 0.0F;
    }
  }
  __syncthreads();  // shared.source is complete

  const device::KvSource& source = shared.source;
  const int end_key = min(task.last_key, source.kv_length);
  const bool paged = source.page_table != nullptr;
  float row_max[kRows], row_sum[kRows];
  float accumulator[kRows][Tile::kDims] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    row_max[r] = -INFINITY;
    row_sum[r] = 0.0F;
  }
  constexpr int kStep = Tile::kKeysPerStep * Tile::kWarps;
  for (int base = task.first_key + warp * Tile::kKeysPerStep; base < end_key; base += kStep) {
    uint4 k[Tile::kUnroll][Tile::kLaneChunks], v[Tile::kUnroll][Tile::kLaneChunks];
#pragma unroll
    for (int u = 0; u < Tile::kUnroll; ++u) {
      const int key = base + u * Tile::kGroups + group;
      bool exists = key < end_key;
      std::int64_t k_offset = 0, v_offset = 0;
      if (exists && paged) {
        const std::uint32_t entry = source.Entry(key);
        exists = source.EntryIsValid(entry);
        k_offset = v_offset = entry * static_cast<std::int64_t>(kPageUnitBytes) +
                              (key & source.page_mask) * source.k_row_bytes;
      } else if (exists) {
        k_offset = key * static_cast<std::int64_t>(source.k_row_bytes);
        v_offset = key * static_cast<std::int64_t>(source.v_row_bytes);
      }
#pragma unroll
      for (int c = 0; c < Tile::kLaneChunks; ++c) {
        const int chunk = group_lane + c * Tile::kGroupLanes;
        const bool load = exists && chunk * Tile::kChunk < head_dim;
        k[u][c] = load ? __ldg(reinterpret_cast<const uint4*>(source.k + k_offset) + chunk)
                       : make_uint4(0, 0, 0, 0);
        v[u][c] = load ? __ldg(reinterpret_cast<const uint4*>(source.v + v_offset) + chunk)
                       : make_uint4(0, 0, 0, 0);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      // The group's dot products, two chains each, then the logits of its kUnroll keys.
      const device::ScoreOptions options(sequence, rows.Head(min(first_row + r, rows.num_rows - 1)),
                                         sequence.softmax_scale);
      const int token = rows.Token(min(first_row + r, rows.num_rows - 1));
      float score[Tile::kUnroll];
      float largest = row_max[r];
#pragma unroll
      for (int u = 0; u < Tile::kUnroll; ++u) {
        const int key = base + u * Tile::kGroups + group;
        float sum[2] = {0.0F, 0.0F};
#pragma unroll
        for (int c = 0; c < Tile::kLaneChunks; ++c) {
          float values[Tile::kChunk];
          Unpack(k[u][c], values);
#pragma unroll
          for (int e = 0; e < Tile::kChunk; ++e) {
            sum[e % 2] = fmaf(q[r][c * Tile::kChunk + e], values[e], sum[e % 2]);
          }
        }
        float dot = sum[0] + sum[1];
#pragma unroll
        for (int step = 1; step < Tile::kGroupLanes; step *= 2) {
          dot += __shfl_xor_sync(0xffffffffU, dot, step);
        }
        const float logit = options.Logit(dot, token, key);
        const bool seen = key >= lower[r] && key < upper[r] && key < end_key;
        score[u] = seen ? __fmul_rn(logit, device::kLog2E) : -INFINITY;
        largest = fmaxf(largest, score[u]);
      }
      if (largest > row_max[r]) {
        const float factor = ptx::Ex2(row_max[r] - largest);  // 0 from -inf
        row_max[r] = largest;
        row_sum[r] *= factor;
#pragma unroll
        for (int d = 0; d < Tile::kDims; ++d) accumulator[r][d] *= factor;
      }
#pragma unroll
      for (int u = 0; u < Tile::kUnroll; ++u) {
        if (score[u] == -INFINITY) continue;  // hidden; a NaN score goes on
        const float p = ptx::Ex2(__fadd_rn(score[u], -row_max[r]));
        row_sum[r] += p;
#pragma unroll
        for (int c = 0; c < Tile::kLaneChunks; ++c) {
          float values[Tile::kChunk];
          Unpack(v[u][c], values);
#pragma unroll
          for (int e = 0; e < Tile::kChunk; ++e) {
            float& total = accumulator[r][c * Tile::kChunk + e];
            total = fmaf(p, values[e], total);
          }
        }
      }
    }
  }

  MergeGroups<Tile>(row_max, row_sum, accumulator);
  if (group == 0) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (lane == 0) {
        shared.row_max[warp][r] = row_max[r];
        shared.row_sum[warp][r] = row_sum[r];
      }
#pragma unroll
      for (int d = 0; d < Tile::kDims; ++d) {
        const int dim =
            (group_lane + d / Tile::kChunk * Tile::kGroupLanes) * Tile::kChunk + d % Tile::kChunk;
        shared.accumulator[warp][r][dim] = accumulator[r][d];
      }
    }
  }
  __syncthreads();
  device::StoreDecodeRows<Element, Tile>(params, shared, sequence, rows, task, plan, first_row, warp,
                                         lane);
}

template <class Element, int kHeadDim>
cudaError_t PrepareDecodeDot(cudaFuncAttributes* attributes) {
  const cudaError_t error =
      PrepareKernel(reinterpret_cast<const void*>(&DecodeDotKernel<Element, kHeadDim, 1>),
                    sizeof(typename DotTile<Element, kHeadDim, 1>::SharedMemory), nullptr);
  if (error != cudaSuccess) return error;
  return PrepareKernel(
      reinterpret_cast<const void*>(&DecodeDotKernel<Element, kHeadDim, kDotBlockRows>),
      sizeof(typename DotTile<Element, kHeadDim, kDotBlockRows>::SharedMemory), attributes);
}

template <class Element, int kHeadDim>
cudaError_t LaunchDecodeDot(const CudaLaunchParams& params, cudaStream_t stream) {
  if (params.max_query_rows == 1) {
    return LaunchDecode<Element, DotTile<Element, kHeadDim, 1>>(
        &DecodeDotKernel<Element, kHeadDim, 1>, params, stream);
  }
  return LaunchDecode<Element, DotTile<Element, kHeadDim, kDotBlockRows>>(
      &DecodeDotKernel<Element, kHeadDim, kDotBlockRows>, params, stream);
}

}  // namespace attnd::kernels::any
