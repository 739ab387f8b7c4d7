// Fused prefill attention for sm_80 and newer, FP16 and BF16, FP32 accumulation.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/device/async_tile_loader.cuh"
#include "kernels/device/attention_mask.cuh"
#include "kernels/device/attention_tile.cuh"
#include "kernels/device/kv_source.cuh"
#include "kernels/device/online_softmax.cuh"
#include "kernels/device/prefill_epilogue.cuh"
#include "kernels/device/score_options.cuh"
#include "kernels/sm80/arch.cuh"
#include "kernels/sm80/prefill.h"

namespace attnd::kernels::sm80 {

template <int kHeadDim>
struct PrefillTile;

template <>
struct PrefillTile<64> {
  static constexpr int kWarps = 4, kFragments = 2, kBlockKv = 64, kStages = 2, kCtasPerSm = 2;
  static constexpr bool kQueryInRegisters = true, kQueryInRing = false;
};
template <>
struct PrefillTile<128> {
  static constexpr int kWarps = 4, kFragments = 2, kBlockKv = 64, kStages = 2, kCtasPerSm = 2;
  static constexpr bool kQueryInRegisters = false, kQueryInRing = false;
};
template <>
struct PrefillTile<256> {
  static constexpr int kWarps = 8, kFragments = 1, kBlockKv = 32, kStages = 2, kCtasPerSm = 1;
  static constexpr bool kQueryInRegisters = true, kQueryInRing = true;
};

template <int kHeadDim, class Tile>
struct PrefillShape : Tile {
  static constexpr int kThreads = Tile::kWarps * 32;
  static constexpr int kWarpRows = Tile::kFragments * 16;
  static constexpr int kBlockQ = Tile::kWarps * kWarpRows;
  static constexpr int kKvElements = Tile::kBlockKv * kHeadDim;

  struct Ring {
    alignas(128) std::uint16_t k[Tile::kStages][kKvElements];
    alignas(128) std::uint16_t v[Tile::kStages][kKvElements];
  };
  struct SeparateQuery {
    alignas(128) std::uint16_t q[kBlockQ * kHeadDim];
    Ring ring;
    device::KvSource source;
  };
  // Q is in registers before the first K tile is asked for, and o is staged after the last.
  struct SharedQuery {
    union {
      alignas(128) std::uint16_t q[kBlockQ * kHeadDim];
      Ring ring;
    };
    device::KvSource source;
  };
  using SharedMemory = std::conditional_t<Tile::kQueryInRing, SharedQuery, SeparateQuery>;
  static_assert(!Tile::kQueryInRing || Tile::kQueryInRegisters);
};

// Flips or zeroes a warp's query rows in shared memory, so that the rest can assume a positive scale.
template <class Element, int kElements>
__device__ __forceinline__ void ScaleQueryRows(std::uint16_t* rows, float factor, int lane) {
  auto* pairs = reinterpret_cast<std::uint32_t*>(rows);
  for (int i = lane; i < kElements / 2; i += 32) {
    pairs[i] = device::ScalePair(pairs[i], factor, Element{});
  }
  __syncwarp();
}

// Tells the compiler that a value is the same in all lanes, so that it may live in a uniform register.
__device__ __forceinline__ int Uniform(int value) { return __shfl_sync(0xffffffffU, value, 0); }

template <class Element, int kHeadDim, PrefillVariant kVariant, class Tile>
__global__ void __launch_bounds__(PrefillShape<kHeadDim, Tile>::kThreads, Tile::kCtasPerSm)
    PrefillKernel(const __grid_constant__ CudaLaunchParams params) {
  using Shape = PrefillShape<kHeadDim, Tile>;
  using SharedMemory = typename Shape::SharedMemory;
  using Loader = device::AsyncTileLoader<kHeadDim, Tile::kBlockKv, Tile::kWarps>;
  constexpr int kFragments = Tile::kFragments;
  constexpr int kBlockKv = Tile::kBlockKv;
  constexpr int kStages = Tile::kStages;
  constexpr int kTiles = kBlockKv / 8;
  constexpr int kSteps = kHeadDim / 16;
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory*>(shared_bytes);

  const int warp = Uniform(threadIdx.x / 32);
  const int lane = threadIdx.x % 32;
  const int head = blockIdx.y;
  const PrefillTask task = params.prefill_tasks[blockIdx.x];
  const AttentionSequence& sequence = params.attention.sequences[task.sequence];
  const int valid_chunks =
      (params.attention.head_dim + device::kChunkElements - 1) / device::kChunkElements;
  const int first_row = task.query_tile * Shape::kBlockQ;
  const int warp_row = first_row + warp * Shape::kWarpRows;
  const int last_row = sequence.query_length - 1;

  // q: [kBlockQ][kHeadDim]; every warp loads, reads and at last overwrites its own rows only.
  std::uint16_t* const warp_q = shared.q + warp * Shape::kWarpRows * kHeadDim;
  const std::uint32_t q_rows = static_cast<std::uint32_t>(__cvta_generic_to_shared(warp_q));
  {
    const std::int64_t row_bytes = sequence.q_token_stride * sizeof(Element);
    const char* q = static_cast<const char*>(sequence.q) +
                    head * sequence.q_head_stride * sizeof(Element) + warp_row * row_bytes;
    device::LoadQueryRows<kHeadDim, Shape::kWarpRows>(q_rows, 0, q, row_bytes,
                                                      last_row + 1 - warp_row, valid_chunks, lane);
    ptx::CpAsyncCommitGroup();
  }

  const device::VisibleKeys visible(sequence);
  const int first_tile = visible.Lower(first_row) / kBlockKv;
  const int end_tile =
      (visible.Upper(min(first_row + Shape::kBlockQ - 1, last_row)) + kBlockKv - 1) / kBlockKv;
  // Tiles outside [some_first, some_end) are hidden from all rows of this warp and skipped; tiles in
  // [full_first, full_end) are visible to all its rows and need no mask.
  const int warp_last_row = min(warp_row + Shape::kWarpRows - 1, last_row);
  const bool has_rows = warp_row <= last_row;
  const int some_first = Uniform(visible.Lower(warp_row) / kBlockKv);
  const int some_end =
      Uniform(has_rows ? (visible.Upper(warp_last_row) + kBlockKv - 1) / kBlockKv : 0);
  const int full_first = Uniform((visible.Lower(warp_last_row) + kBlockKv - 1) / kBlockKv);
  const int full_end = Uniform(visible.Upper(warp_row) / kBlockKv);

  // The base-2 factor of a score. Scale 0 gives every visible key weight 1: Q is zeroed instead.
  float c = device::kLog2E;
  float query_factor = 1.0F;
  if constexpr (kVariant == PrefillVariant::kPlain) {
    c = fabsf(sequence.softmax_scale * device::kLog2E);
    query_factor = c == 0.0F ? 0.0F : (sequence.softmax_scale < 0.0F ? -1.0F : 1.0F);
    if (c == 0.0F) c = 1.0F;
  }
  const device::ScoreOptions options(sequence, head, sequence.softmax_scale);

  if (threadIdx.x == 0) {
    const int kv_head = head / (params.attention.num_heads / params.attention.num_kv_heads);
    shared.source.Set(params, sequence, kv_head, sizeof(Element));
  }
  __syncthreads();

  const std::uint32_t ring_k =
      static_cast<std::uint32_t>(__cvta_generic_to_shared(shared.ring.k[0]));
  const std::uint32_t ring_v =
      static_cast<std::uint32_t>(__cvta_generic_to_shared(shared.ring.v[0]));
  constexpr int kStageBytes = Shape::kKvElements * 2;
  const device::KvSource& source = shared.source;
  Loader loader(source, valid_chunks, warp, lane);
  // Starts the copy of the prepared tile `tile` into its stage.
  auto load_tile = [&](int tile) {
    if (tile < end_tile) {
      const std::uint32_t stage = (tile - first_tile) % kStages * kStageBytes;
      loader.Load(ring_k + stage, ring_v + stage, source);
    }
    ptx::CpAsyncCommitGroup();
  };

  std::uint32_t query[Tile::kQueryInRegisters ? kSteps : 1][kFragments][4];
  auto take_query = [&] {
    if (query_factor != 1.0F) {
      ScaleQueryRows<Element, Shape::kWarpRows * kHeadDim>(warp_q, query_factor, lane);
    }
    if constexpr (Tile::kQueryInRegisters) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
#pragma unroll
        for (int m = 0; m < kFragments; ++m) {
          device::LoadQueryFragment<kHeadDim>(query[k][m], q_rows, 16 * m, k, lane);
        }
      }
    }
  };
  auto query_at = [&](int k, std::uint32_t (&q)[kFragments][4]) {
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
      if constexpr (Tile::kQueryInRegisters) {
#pragma unroll
        for (int i = 0; i < 4; ++i) q[m][i] = query[k][m][i];
      } else {
        device::LoadQueryFragment<kHeadDim>(q[m], q_rows, 16 * m, k, lane);
      }
    }
  };

  loader.FetchEntries(source, first_tile * kBlockKv);
  if constexpr (Tile::kQueryInRing) {
    ptx::CpAsyncWaitGroup<0>();
    __syncwarp();
    take_query();
    __syncthreads();  // the ring may be written
  }
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    loader.Prepare(source, (first_tile + s) * kBlockKv);
    load_tile(first_tile + s);
    loader.FetchEntries(source, (first_tile + s + 1) * kBlockKv);
  }
  loader.Prepare(source, (first_tile + kStages - 1) * kBlockKv);
  if constexpr (!Tile::kQueryInRing) {
    ptx::CpAsyncWaitGroup<kStages - 1>();
    __syncwarp();
    take_query();
  }

  device::OnlineSoftmax<kFragments> softmax;
  float accumulator[kFragments][kHeadDim / 8][4] = {};
  for (int tile = first_tile; tile < end_tile; ++tile) {
    // Tile `tile` has landed for every thread, and all warps are done with the stage that the next
    // load overwrites.
    ptx::CpAsyncWaitGroup<kStages - 2>();
    __syncthreads();
    load_tile(tile + kStages - 1);
    loader.FetchEntries(source, (tile + kStages) * kBlockKv);

    const int first_key = tile * kBlockKv;
    if (tile < some_first || tile >= some_end) {
      loader.Prepare(source, (tile + kStages) * kBlockKv);
      continue;
    }
    const std::uint32_t stage = (tile - first_tile) % kStages * kStageBytes;
    float s[kFragments][kTiles][4];
    device::ScoreTile<Arch, Element, kHeadDim>(s, ring_k + stage, lane, query_at);
    if constexpr (kVariant == PrefillVariant::kAll) {
      device::ApplyOptions(s, options, warp_row, first_key, lane);
    }
    if (tile < full_first || tile >= full_end) {
      device::MaskTile(s, visible, warp_row, first_key, lane);
    }
    softmax.Step(s, accumulator, c);
    device::AccumulateTile<Arch, Element, kHeadDim>(accumulator, s, ring_v + stage, lane);
    loader.Prepare(source, (tile + kStages) * kBlockKv);
  }

  if constexpr (Tile::kQueryInRing) __syncthreads();  // other warps may still read the ring
  if (warp_row > last_row) return;
  float sink_log2 = -INFINITY;
  if constexpr (kVariant == PrefillVariant::kAll) {
    if (sequence.sink_logits != nullptr && !params.attention.partial) {
      sink_log2 = sequence.sink_logits[head] * device::kLog2E;
    }
  }
  device::StorePrefillRows<Element, kHeadDim>(params, sequence, head, warp_row, accumulator, softmax,
                                              sink_log2, reinterpret_cast<std::uint32_t*>(warp_q),
                                              blockIdx.x, lane);
}

template <class Element, int kHeadDim, PrefillVariant kVariant, class Tile>
cudaError_t PreparePrefill() {
  return cudaFuncSetAttribute(
      PrefillKernel<Element, kHeadDim, kVariant, Tile>, cudaFuncAttributeMaxDynamicSharedMemorySize,
      sizeof(typename PrefillShape<kHeadDim, Tile>::SharedMemory));
}

template <class Element, int kHeadDim, PrefillVariant kVariant, class Tile>
cudaError_t LaunchPrefill(const CudaLaunchParams& params, cudaStream_t stream) {
  using Shape = PrefillShape<kHeadDim, Tile>;
  const dim3 grid(params.num_tasks, params.attention.num_heads);
  PrefillKernel<Element, kHeadDim, kVariant, Tile>
      <<<grid, Shape::kThreads, sizeof(typename Shape::SharedMemory), stream>>>(params);
  return cudaGetLastError();
}

}  // namespace attnd::kernels::sm80
