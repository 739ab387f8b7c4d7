// Fused decode attention on tensor cores, sm_80 and newer: few query rows, long paged KV.
//
// Algorithm  One CTA owns (sequence, KV head, split, 16 query rows). All query tokens and all heads
// of
//            the group are packed into the rows of one m16 fragment, so K and V are read once for
//            them. Every warp streams its own slices of 16 keys through a private ring and keeps
//            its own (row_max, row_sum, accumulator): no barrier until the end, where the warps'
//            states merge in shared memory. Splits are planned on the host (cuda/decode_plan.h);
//            states of several splits go to the partials and any/combine_splits merges them in KV
//            order.
// Warps      4, slices interleaved: warp w takes keys first + 64 i + 16 w.
// Shared     Ring of 3 stages (d 64: 4) x 16 keys x (K + V) a warp: 24 KiB at d 128, 96 KiB a CTA,
// two
//            CTAs an SM; two thirds of it are in flight, 128 KiB an SM against the 24 KiB that
//            4.6 TB/s x 1.1 us ask for. Q passes through the last stage into registers.
// Roofline   4 bytes of K and V a dim and key against 4 x group FLOP: HBM-bound up to group 64.
//            64 x 8192 tokens x 8 KV heads x 128 dims = 2.1 GB: 467 us at 4.6 TB/s.
// Limits     rows and addresses aligned to 16 bytes; lengths up to kMaxDeviceTokens.
#pragma once

#include <cstdint>

#include "kernels/any/combine_splits.h"
#include "kernels/device/async_tile_loader.cuh"
#include "kernels/device/attention_tile.cuh"
#include "kernels/device/decode_rows.cuh"
#include "kernels/device/online_softmax.cuh"
#include "kernels/device/prefill_rows.cuh"
#include "kernels/sm80/arch.cuh"
#include "kernels/sm80/decode_mma.h"

namespace attnd::kernels::sm80 {

template <int kHeadDim>
struct DecodeTile {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRows = kDecodeBlockRows;
  static constexpr int kSliceKeys = 16;
  static constexpr int kStepKeys = kSliceKeys * kWarps;
  static constexpr int kStages = kHeadDim == 64 ? 4 : 3;
  static constexpr int kCtasPerSm = kHeadDim == 256 ? 1 : 2;

  struct Slice {
    alignas(128) std::uint16_t k[kSliceKeys * kHeadDim];
    alignas(128) std::uint16_t v[kSliceKeys * kHeadDim];
  };
  // The warps' states at the end: accumulators already scaled to the common row_max.
  struct Merge {
    float accumulator[kWarps][kRows][kHeadDim];
    float row_max[kWarps][kRows];
    float row_sum[kWarps][kRows];
  };
  struct SharedMemory {
    union {
      Slice ring[kWarps][kStages];
      Merge merge;
    };
    device::KvSource source;
  };
};
static_assert(sizeof(DecodeTile<128>::SharedMemory) <= 99 * 1024, "one CTA on sm_86 and sm_89");
static_assert(sizeof(DecodeTile<64>::SharedMemory) <= 80 * 1024, "two CTAs on sm_80");
static_assert(sizeof(DecodeTile<256>::SharedMemory) <= 227 * 1024);

// This lane's two rows of a score fragment (rows group and group + 8) as query tokens and heads.
struct LaneRows {
  int token[2], head[2], lower[2], upper[2];

  __device__ __forceinline__ LaneRows(const device::DecodeRows& rows,
                                      const device::VisibleKeys& visible, int first_row, int lane) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = min(first_row + 8 * r + (lane >> 2), rows.num_rows - 1);
      token[r] = rows.Token(row);
      head[r] = rows.Head(row);
      lower[r] = visible.Lower(token[r]);
      upper[r] = visible.Upper(token[r]);
    }
  }
};

// Scores of 16 keys to logits where the sequence has options that change them; then the mask.
__device__ __forceinline__ void FinishScores(float (&s)[1][2][4], const AttentionSequence& sequence,
                                             const LaneRows& rows, bool has_options, int first_key,
                                             int lane) {
  if (has_options) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const device::ScoreOptions options(sequence, rows.head[r], sequence.softmax_scale);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) {
          const int key = first_key + 8 * n + 2 * (lane & 3) + e % 2;
          s[0][n][e] = options.Logit(s[0][n][e], rows.token[r], key);
        }
      }
    }
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int key = first_key + 8 * n + 2 * (lane & 3) + e % 2;
      const bool seen = key >= rows.lower[e / 2] && key < rows.upper[e / 2];
      s[0][n][e] = seen ? s[0][n][e] : -INFINITY;
    }
  }
}

// Puts a warp's state where the others can read it.
template <int kHeadDim>
__device__ __forceinline__ void PublishState(typename DecodeTile<kHeadDim>::Merge& merge,
                                             device::OnlineSoftmax<1>& softmax,
                                             float (&accumulator)[1][kHeadDim / 8][4], int warp,
                                             int lane) {
  const int group = lane >> 2;
  const int quad = lane & 3;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = softmax.row_sum[0][r];
    sum += __shfl_xor_sync(0xffffffffU, sum, 1);
    sum += __shfl_xor_sync(0xffffffffU, sum, 2);
    if (quad == 0) {
      merge.row_max[warp][8 * r + group] = softmax.row_max[0][r];
      merge.row_sum[warp][8 * r + group] = sum;
    }
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      *reinterpret_cast<float2*>(&merge.accumulator[warp][8 * r + group][8 * n + 2 * quad]) =
          make_float2(accumulator[0][n][2 * r], accumulator[0][n][2 * r + 1]);
    }
  }
}

// Starts the copy of 16 packed query rows into a swizzled tile.
template <class Element, int kHeadDim>
__device__ __forceinline__ void LoadPackedQuery(std::uint16_t* tile,
                                                const AttentionSequence& sequence,
                                                const device::DecodeRows& rows, int first_row,
                                                int valid_chunks, int lane) {
  using Layout = device::TileLayout<kHeadDim>;
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(tile));
#pragma unroll 2
  for (int i = lane; i < kDecodeBlockRows * Layout::kChunks; i += 32) {
    const int row = first_row + i / Layout::kChunks;
    const int chunk = i % Layout::kChunks;
    const bool exists = row < rows.num_rows && chunk < valid_chunks;
    const auto* q = static_cast<const Element*>(sequence.q);
    if (exists) {
      q += rows.Token(row) * sequence.q_token_stride + rows.Head(row) * sequence.q_head_stride +
           chunk * device::kChunkElements;
    }
    ptx::CpAsync16(address + Layout::Offset(i / Layout::kChunks, chunk), q,
                   exists ? device::kChunkBytes : 0);
  }
}

template <class Element, int kHeadDim>
__global__ void __launch_bounds__(DecodeTile<kHeadDim>::kThreads, DecodeTile<kHeadDim>::kCtasPerSm)
    DecodeMmaKernel(const __grid_constant__ CudaLaunchParams params) {
  using Tile = DecodeTile<kHeadDim>;
  using Loader = device::AsyncTileLoader<kHeadDim, Tile::kSliceKeys, 1, Tile::kStepKeys>;
  constexpr int kStages = Tile::kStages;
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<typename Tile::SharedMemory*>(shared_bytes);

  const int warp = device::Uniform(threadIdx.x / 32);
  const int lane = threadIdx.x % 32;
  // Passes over the same keys are neighbours, so that all but the first find them in the L2.
  const int passes = (params.max_query_rows + Tile::kRows - 1) / Tile::kRows;
  const int unit = blockIdx.x / passes;
  const int first_row = blockIdx.x % passes * Tile::kRows;
  const int kv_head = unit % params.attention.num_kv_heads;
  const DecodeTask task = params.decode_tasks[unit / params.attention.num_kv_heads];
  const AttentionSequence sequence = params.attention.sequences[task.sequence];
  const device::DecodeRows rows(params, sequence, kv_head);
  if (first_row >= rows.num_rows) return;
  const int valid_chunks =
      (params.attention.head_dim + device::kChunkElements - 1) / device::kChunkElements;
  const device::VisibleKeys visible(sequence);
  const LaneRows lane_rows(rows, visible, first_row, lane);
  const bool has_options = sequence.logits_soft_cap > 0.0F || sequence.bias != nullptr ||
                           sequence.alibi_slopes != nullptr;
  // Logits are in natural units, and the scale is part of them.
  const device::ScoreFactor factor(has_options ? 1.0F : sequence.softmax_scale);
  if (threadIdx.x == 0) shared.source.Set(params, sequence, kv_head, sizeof(Element));

  // q: [16 rows][kHeadDim], one copy a warp, zeros in rows that do not exist. It lies in the stage
  // that is written last, so that the first slices of K and V need not wait for it.
  auto* const warp_q = reinterpret_cast<std::uint16_t*>(&shared.ring[warp][kStages - 1]);
  LoadPackedQuery<Element, kHeadDim>(warp_q, sequence, rows, first_row, valid_chunks, lane);
  ptx::CpAsyncCommitGroup();
  __syncthreads();  // shared.source is complete

  const device::KvSource& source = shared.source;
  const auto ring_address =
      static_cast<std::uint32_t>(__cvta_generic_to_shared(&shared.ring[warp]));
  const int warp_key = task.first_key + warp * Tile::kSliceKeys;
  const int end_key = min(task.last_key, source.kv_length);
  const int slices = max((end_key - warp_key + Tile::kStepKeys - 1) / Tile::kStepKeys, 0);
  Loader loader(source, static_cast<std::uint32_t>(__cvta_generic_to_shared(&shared.source)),
                warp_key, valid_chunks, 0, lane);
  auto slice_k = [&](int slice) {
    return ring_address + static_cast<int>(slice % kStages * sizeof(typename Tile::Slice));
  };
  constexpr int kValueOffset = sizeof(typename Tile::Slice) / 2;
  auto load_slice = [&](int slice) {
    const int first_key = warp_key + slice * Tile::kStepKeys;
    if (slice < slices) {
      loader.Load(slice_k(slice), slice_k(slice) + kValueOffset, source, first_key);
      loader.FetchEntries(source, first_key + Tile::kStepKeys);
    }
    ptx::CpAsyncCommitGroup();
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    load_slice(i);
    loader.Prepare(source, warp_key + (i + 1) * Tile::kStepKeys);
  }

  ptx::CpAsyncWaitGroup<kStages - 1>();
  __syncwarp();
  const device::QueryOperands<Element, kHeadDim, 1, true> query(warp_q, factor.query_factor, lane);

  device::OnlineSoftmax<1> softmax;
  float accumulator[1][kHeadDim / 8][4] = {};
  for (int slice = 0; slice < slices; ++slice) {
    ptx::CpAsyncWaitGroup<kStages - 2>();
    __syncwarp();  // the slice has landed for all lanes, and all are done with the one before it
    load_slice(slice + kStages - 1);
    float s[1][2][4];
    device::ScoreTile<Arch, Element, kHeadDim>(s, slice_k(slice), lane, query);
    FinishScores(s, sequence, lane_rows, has_options, warp_key + slice * Tile::kStepKeys, lane);
    softmax.Step(s, accumulator, factor.c);
    device::AccumulateTile<Arch, Element, kHeadDim>(accumulator, s, slice_k(slice) + kValueOffset,
                                                    lane);
    loader.Prepare(source, warp_key + (slice + kStages) * Tile::kStepKeys);
  }

  ptx::CpAsyncWaitGroup<0>();
  __syncthreads();  // the ring becomes the merge area
  PublishState<kHeadDim>(shared.merge, softmax, accumulator, warp, lane);
  __syncthreads();

  // One warp a row, rows in turn; each lane kHeadDim / 32 neighbouring dims.
  constexpr int kDims = kHeadDim / 32;
  const DecodeSequencePlan plan = params.decode_plans[task.sequence];
  for (int i = warp; i < Tile::kRows && first_row + i < rows.num_rows; i += Tile::kWarps) {
    const int token = rows.Token(first_row + i);
    const int head = rows.Head(first_row + i);
    float row_max = shared.merge.row_max[0][i];
#pragma unroll
    for (int w = 1; w < Tile::kWarps; ++w) row_max = fmaxf(row_max, shared.merge.row_max[w][i]);
    float row_sum = 0.0F;
    float total[kDims] = {};
#pragma unroll
    for (int w = 0; w < Tile::kWarps; ++w) {
      // A warp that saw no key adds nothing; its row_max of -inf would make a NaN.
      if (shared.merge.row_max[w][i] == -INFINITY && shared.merge.row_sum[w][i] == 0.0F) continue;
      const float weight = ptx::Ex2(shared.merge.row_max[w][i] - row_max);
      row_sum = fmaf(shared.merge.row_sum[w][i], weight, row_sum);
#pragma unroll
      for (int d = 0; d < kDims; ++d) {
        total[d] = fmaf(shared.merge.accumulator[w][i][lane * kDims + d], weight, total[d]);
      }
    }
    if (plan.num_splits > 1) {
      const std::int64_t row =
          plan.first_partial +
          (static_cast<std::int64_t>(task.split) * sequence.query_length + token) *
              params.attention.num_heads +
          head;
      float* const o = params.partial_o + row * params.attention.head_dim;
#pragma unroll
      for (int d = 0; d < kDims; ++d) {
        if (lane * kDims + d < params.attention.head_dim) o[lane * kDims + d] = total[d];
      }
      if (lane == 0) params.partial_state[row] = make_float2(row_max, row_sum);
      continue;
    }
    const device::RowResult result =
        device::FinishRow(row_max, row_sum, device::SinkLog2(params, sequence, head));
    const bool finite = device::StoreRow<Element>(params, sequence, token, head, lane * kDims,
                                                  total, result.factor);
    if (!finite) device::FlagNonfinite(params, task.sequence, head);
    if (lane == 0 && sequence.lse != nullptr) {
      sequence.lse[static_cast<std::int64_t>(token) * params.attention.num_heads + head] =
          result.lse;
    }
  }
}

template <class Element, int kHeadDim>
cudaError_t PrepareDecodeMma() {
  return cudaFuncSetAttribute(DecodeMmaKernel<Element, kHeadDim>,
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              sizeof(typename DecodeTile<kHeadDim>::SharedMemory));
}

template <class Element, int kHeadDim>
cudaError_t LaunchDecodeMma(const CudaLaunchParams& params, cudaStream_t stream) {
  using Tile = DecodeTile<kHeadDim>;
  const int passes = (params.max_query_rows + Tile::kRows - 1) / Tile::kRows;
  const unsigned ctas = static_cast<unsigned>(params.num_tasks) *
                        static_cast<unsigned>(params.attention.num_kv_heads) *
                        static_cast<unsigned>(passes);
  if (ctas == 0) return cudaSuccess;
  DecodeMmaKernel<Element, kHeadDim>
      <<<ctas, Tile::kThreads, sizeof(typename Tile::SharedMemory), stream>>>(params);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess || params.max_splits <= 1) return error;
  return any::LaunchCombineSplits<Element>(params, stream);
}

}  // namespace attnd::kernels::sm80
