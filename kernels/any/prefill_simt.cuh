// Exact attention on FP32 multiply-adds: every type, every option, any alignment.
//
// Algorithm  One CTA owns a tile of query rows of one head and streams KV tiles as FP32 through
//            shared memory. A hidden key is skipped, never multiplied: its probability carries a
//            mark instead of a value, so that NaN or Inf in its value cannot reach o. Hence also
//            the rerun path.
// Tiles      32 rows x 32 keys; 16 x 16 at d 256, where 32 do not fit in the 64 KiB of an sm_75.
// Threads    256. Scores: 2 x 2 (1 at d 256) a thread. P V: 8 (16) threads a row, kHeadDim / 8
//            (16) dims each, the accumulator in registers.
// Shared     Q + K (rows padded by 4 floats: neighbouring rows in different banks) + V + P: 54
//            KiB at d 128, 51 KiB at d 256.
// Roofline   4 * head_dim FLOP a score at the FP32 rate (T4 8 TFLOP/s, H200 60); shared memory
//            reads, one 16-byte read for four multiply-adds, hold it to about a quarter of that.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/any/prefill_simt.h"
#include "kernels/cuda/prepare_kernel.h"
#include "kernels/device/attention_mask.cuh"
#include "kernels/device/decode_rows.cuh"
#include "kernels/device/kv_source.cuh"
#include "kernels/device/score_options.cuh"

namespace attnd::kernels::any {

template <int kHeadDim>
struct SimtTile {
  static constexpr int kRows = SimtBlockQ(kHeadDim);
  static constexpr int kKeys = kRows;
  static constexpr int kThreads = 256;
  static constexpr int kThreadsPerRow = kThreads / kRows;
  static constexpr int kDims = kHeadDim / kThreadsPerRow;  // of one thread in P V
  static constexpr int kPitch = kHeadDim + 4;
  static constexpr int kGrid = 16;               // threads a side in the score tile
  static constexpr int kScores = kRows / kGrid;  // scores a thread a side
  static constexpr float kHidden = -1.0F;        // the mark of a hidden key; p is never negative

  struct SharedMemory {
    float q[kRows][kPitch];
    float k[kKeys][kPitch];
    float v[kKeys][kHeadDim];
    float p[kRows][kKeys + 1];  // scores, then probabilities
    device::KvSource source;
  };
  static_assert(sizeof(SharedMemory) <= 64 * 1024, "all the shared memory that an sm_75 has");
};

__device__ __forceinline__ float ToFloat(float value) { return value; }
__device__ __forceinline__ float ToFloat(__half value) { return __half2float(value); }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }

// K and V rows [first_key, first_key + kKeys) as FP32, zeros past the end and past head_dim.
template <class Element, int kHeadDim>
__device__ __forceinline__ void LoadKeysAndValues(typename SimtTile<kHeadDim>::SharedMemory& shared,
                                                  int first_key, int head_dim) {
  using Tile = SimtTile<kHeadDim>;
  const device::KvSource& source = shared.source;
  for (int i = threadIdx.x; i < Tile::kKeys * kHeadDim; i += Tile::kThreads) {
    const int row = i / kHeadDim;
    const int dim = i % kHeadDim;
    const int key = first_key + row;
    float k = 0.0F;
    float v = 0.0F;
    if (key < source.kv_length && dim < head_dim) {
      const std::uint32_t entry = source.Entry(key);
      const bool paged = source.page_table != nullptr;
      if (!paged || source.EntryIsValid(entry)) {
        const std::int64_t page = paged ? entry * static_cast<std::int64_t>(kPageUnitBytes) : 0;
        const std::int64_t in_page = paged ? key & source.page_mask : key;
        k = ToFloat(
            reinterpret_cast<const Element*>(source.k + page + in_page * source.k_row_bytes)[dim]);
        v = ToFloat(
            reinterpret_cast<const Element*>(source.v + page + in_page * source.v_row_bytes)[dim]);
      }
    }
    shared.k[row][dim] = k;
    shared.v[row][dim] = v;
  }
}

// p[row][key] = logit of every score of the tile, kHidden-marked later.
template <int kHeadDim>
__device__ __forceinline__ void ComputeLogits(typename SimtTile<kHeadDim>::SharedMemory& shared,
                                              const device::ScoreOptions& options, int first_row,
                                              int first_key) {
  using Tile = SimtTile<kHeadDim>;
  const int x = threadIdx.x % Tile::kGrid;
  const int y = threadIdx.x / Tile::kGrid;
  // Four chains a score: a quarter of the length, so half the rounding error of one.
  float4 sum[Tile::kScores][Tile::kScores] = {};
#pragma unroll 4
  for (int dim = 0; dim < kHeadDim; dim += 4) {
    float4 q[Tile::kScores];
    float4 k[Tile::kScores];
#pragma unroll
    for (int i = 0; i < Tile::kScores; ++i) {
      q[i] = *reinterpret_cast<const float4*>(&shared.q[y + i * Tile::kGrid][dim]);
      k[i] = *reinterpret_cast<const float4*>(&shared.k[x + i * Tile::kGrid][dim]);
    }
#pragma unroll
    for (int i = 0; i < Tile::kScores; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::kScores; ++j) {
        sum[i][j].x = fmaf(q[i].x, k[j].x, sum[i][j].x);
        sum[i][j].y = fmaf(q[i].y, k[j].y, sum[i][j].y);
        sum[i][j].z = fmaf(q[i].z, k[j].z, sum[i][j].z);
        sum[i][j].w = fmaf(q[i].w, k[j].w, sum[i][j].w);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < Tile::kScores; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::kScores; ++j) {
      const int row = y + i * Tile::kGrid;
      const int key = x + j * Tile::kGrid;
      const float score = (sum[i][j].x + sum[i][j].y) + (sum[i][j].z + sum[i][j].w);
      shared.p[row][key] = options.Logit(score, first_row + row, first_key + key);
    }
  }
}

template <class Element, int kHeadDim>
__global__ void __launch_bounds__(SimtTile<kHeadDim>::kThreads)
    PrefillSimtKernel(const __grid_constant__ CudaLaunchParams params) {
  using Tile = SimtTile<kHeadDim>;
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<typename Tile::SharedMemory*>(shared_bytes);
  const int head = blockIdx.y;
  if (params.rerun_of != nullptr) {
    const std::uint32_t bit = params.rerun_of[blockIdx.x] * params.attention.num_heads + head;
    if ((params.rerun_flags[bit / 32] >> (bit % 32) & 1U) == 0U) return;
  }
  const PrefillTask task = params.prefill_tasks[blockIdx.x];
  const AttentionSequence& sequence = params.attention.sequences[task.sequence];
  const int head_dim = params.attention.head_dim;
  const int first_row = task.query_tile * Tile::kRows;
  const int last_row = sequence.query_length - 1;
  const device::VisibleKeys visible(sequence);
  const device::ScoreOptions options(sequence, head, sequence.softmax_scale);
  if (threadIdx.x == 0) shared.source.Set(params, sequence, head / params.group, sizeof(Element));
  for (int i = threadIdx.x; i < Tile::kRows * kHeadDim; i += Tile::kThreads) {
    const int row = first_row + i / kHeadDim;
    const int dim = i % kHeadDim;
    const auto* q = static_cast<const Element*>(sequence.q);
    shared.q[i / kHeadDim][dim] =
        row <= last_row && dim < head_dim
            ? ToFloat(q[row * sequence.q_token_stride + head * sequence.q_head_stride + dim])
            : 0.0F;
  }
  __syncthreads();

  // This thread's row in softmax and P V, and its share of the row's keys and dims.
  const int tile_row = threadIdx.x / Tile::kThreadsPerRow;
  const int part = threadIdx.x % Tile::kThreadsPerRow;
  const int row = first_row + tile_row;
  const int lower = visible.Lower(row);
  const int upper = row <= last_row ? visible.Upper(row) : 0;
  float row_max = -INFINITY;
  float row_sum = 0.0F;
  float accumulator[Tile::kDims] = {};

  const int first_tile = visible.Lower(first_row) / Tile::kKeys;
  const int end = visible.Upper(min(first_row + Tile::kRows - 1, last_row));
  for (int first_key = first_tile * Tile::kKeys; first_key < end; first_key += Tile::kKeys) {
    LoadKeysAndValues<Element, kHeadDim>(shared, first_key, head_dim);
    __syncthreads();
    ComputeLogits<kHeadDim>(shared, options, first_row, first_key);
    __syncthreads();
    // A logit of -inf hides its key like a mask. The largest visible logit of the row:
    float largest = -INFINITY;
    for (int key = part; key < Tile::kKeys; key += Tile::kThreadsPerRow) {
      const bool seen = first_key + key >= lower && first_key + key < upper;
      if (seen) largest = fmaxf(largest, shared.p[tile_row][key]);
    }
#pragma unroll
    for (int step = Tile::kThreadsPerRow / 2; step > 0; step /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, step));
    }
    const float raised = fmaxf(row_max, largest * device::kLog2E);
    const float factor = raised == -INFINITY ? 1.0F : ptx::Ex2(row_max - raised);
    row_max = raised;
    // A tile's sums apart, then to the running ones: one chain over all keys would round as often.
    float tile_sum = 0.0F;
    for (int key = part; key < Tile::kKeys; key += Tile::kThreadsPerRow) {
      float& p = shared.p[tile_row][key];
      const bool seen = first_key + key >= lower && first_key + key < upper && p != -INFINITY;
      p = seen ? ptx::Ex2(__fadd_rn(__fmul_rn(p, device::kLog2E), -row_max)) : Tile::kHidden;
      if (seen) tile_sum += p;
    }
    row_sum = fmaf(row_sum, factor, tile_sum);
    __syncwarp();  // the threads of a row are in one warp
    float tile[Tile::kDims] = {};
    for (int key = 0; key < Tile::kKeys; ++key) {
      const float p = shared.p[tile_row][key];
      if (p == Tile::kHidden) continue;
#pragma unroll
      for (int d = 0; d < Tile::kDims; ++d) {
        tile[d] = fmaf(p, shared.v[key][part + d * Tile::kThreadsPerRow], tile[d]);
      }
    }
#pragma unroll
    for (int d = 0; d < Tile::kDims; ++d) accumulator[d] = fmaf(accumulator[d], factor, tile[d]);
    __syncthreads();  // K, V and P may be overwritten
  }

#pragma unroll
  for (int step = Tile::kThreadsPerRow / 2; step > 0; step /= 2) {
    row_sum += __shfl_xor_sync(0xffffffffU, row_sum, step);
  }
  if (row > last_row) return;
  const device::RowResult result =
      device::FinishRow(row_max, row_sum, device::SinkLog2(params, sequence, head));
#pragma unroll
  for (int d = 0; d < Tile::kDims; ++d) {
    const float value[1] = {accumulator[d]};
    // Non-finite is the answer here, not a reason to run again.
    device::StoreRow<Element>(params, sequence, row, head, part + d * Tile::kThreadsPerRow, value,
                              result.factor);
  }
  if (part == 0 && sequence.lse != nullptr) {
    sequence.lse[static_cast<std::int64_t>(row) * params.attention.num_heads + head] = result.lse;
  }
}

template <class Element, int kHeadDim>
cudaError_t PreparePrefillSimt(cudaFuncAttributes* attributes) {
  return PrepareKernel(reinterpret_cast<const void*>(&PrefillSimtKernel<Element, kHeadDim>),
                       sizeof(typename SimtTile<kHeadDim>::SharedMemory), attributes);
}

template <class Element, int kHeadDim>
cudaError_t LaunchPrefillSimt(const CudaLaunchParams& params, cudaStream_t stream) {
  using Tile = SimtTile<kHeadDim>;
  const dim3 grid(params.num_tasks, params.attention.num_heads);
  PrefillSimtKernel<Element, kHeadDim>
      <<<grid, Tile::kThreads, sizeof(typename Tile::SharedMemory), stream>>>(params);
  return cudaGetLastError();
}

}  // namespace attnd::kernels::any
