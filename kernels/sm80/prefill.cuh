// Fused prefill attention for sm_80 and newer: FP16 and BF16, FP32 accumulation.
//
// Algorithm  One CTA owns a tile of query rows of one head of one sequence. It streams the KV
//            tiles that some row sees through a ring in shared memory, in ascending order from
//            multiples of kBlockKv, and keeps (row_max, row_sum, accumulator) in registers. A
//            warp skips tiles that all its rows hide and masks only tiles on an edge.
// Overlap    Softmax and P V stand in one basic block, so that the compiler interleaves ex2 with
//            mma; without that (a branch between them) 8 % of the speed is gone. The next tiles'
//            copies run under everything; their addresses are prepared after P V, away from the
//            barrier.
// Tiles      d 64: 128 rows x 64 keys. d 128: 128 x 64. d 256: 64 x 64. 2 stages; at d 256 one, in
//            which K and V are copied in turn: V under Q K^T, the next K under softmax and P V.
// Warps      4, two CTAs an SM. 32 rows each at d 64 and 128: every K and V fragment feeds two
//            mma. 16 at d 256, where two fragments of the accumulator do not fit in registers and
//            shared memory binds: a warp reads 72 KiB and the copies write 16 KiB for 64 keys, 700
//            cycles against 394 of mma.
// Shared     Q + stages x (K + V): d 64 16 + 32 KiB, d 128 32 + 64 KiB, d 256 32 + 64 KiB (under
//            the 99 KiB of sm_86 and sm_89).
// Roofline   4 * head_dim FLOP a score. mma.m16n8k16 reaches 641 TFLOP/s on an H200 (measured);
//            at d 64 ex2 (16 a clock an SM) needs 65 % of the time that mma does.
// Limits     rows and addresses aligned to 16 bytes; lengths up to kMaxDeviceTokens.
#pragma once

#include <cstdint>

#include "kernels/cuda/prepare_kernel.h"
#include "kernels/device/async_tile_loader.cuh"
#include "kernels/device/attention_mask.cuh"
#include "kernels/device/attention_tile.cuh"
#include "kernels/device/kv_source.cuh"
#include "kernels/device/online_softmax.cuh"
#include "kernels/device/prefill_epilogue.cuh"
#include "kernels/device/prefill_rows.cuh"
#include "kernels/device/score_options.cuh"
#include "kernels/sm80/arch.cuh"
#include "kernels/sm80/prefill.h"

namespace attnd::kernels::sm80 {

template <int kHeadDim>
struct PrefillTile;

template <>
struct PrefillTile<64> {
  static constexpr int kWarps = 4, kFragments = 2, kBlockKv = 64, kStages = 2, kCtasPerSm = 2;
  static constexpr bool kQueryInRegisters = true;
};
template <>
struct PrefillTile<128> {
  static constexpr int kWarps = 4, kFragments = 2, kBlockKv = 64, kStages = 2, kCtasPerSm = 2;
  static constexpr bool kQueryInRegisters = false;
};
template <>
struct PrefillTile<256> {
  static constexpr int kWarps = 4, kFragments = 1, kBlockKv = 64, kStages = 1, kCtasPerSm = 2;
  static constexpr bool kQueryInRegisters = false;
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
  struct SharedMemory {
    alignas(128) std::uint16_t q[kBlockQ * kHeadDim];
    Ring ring;
    device::KvSource source;
  };
  static_assert(sizeof(SharedMemory) <= 99 * 1024, "what a CTA may have on sm_86 and sm_89");
};

template <class Element, int kHeadDim, PrefillVariant kVariant, class Tile>
__global__ void __launch_bounds__(PrefillShape<kHeadDim, Tile>::kThreads, Tile::kCtasPerSm)
    PrefillKernel(const __grid_constant__ CudaLaunchParams params) {
  using Shape = PrefillShape<kHeadDim, Tile>;
  using Loader = device::AsyncTileLoader<kHeadDim, Tile::kBlockKv, Tile::kWarps>;
  using Query = device::QueryOperands<Element, kHeadDim, Tile::kFragments, Tile::kQueryInRegisters>;
  constexpr int kFragments = Tile::kFragments;
  constexpr int kBlockKv = Tile::kBlockKv;
  constexpr int kStages = Tile::kStages;
  constexpr bool kAll = kVariant == PrefillVariant::kAll;
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<typename Shape::SharedMemory*>(shared_bytes);

  const int warp = device::Uniform(threadIdx.x / 32);
  const int lane = threadIdx.x % 32;
  const device::PrefillPlace place(params);
  const int head = place.head;
  const PrefillTask task = params.prefill_tasks[place.task];
  // A copy, so that all its loads start together; the epilogue reads the original again.
  const AttentionSequence sequence = params.attention.sequences[task.sequence];
  const int valid_chunks =
      (params.attention.head_dim + device::kChunkElements - 1) / device::kChunkElements;
  const int first_row = task.query_tile * Shape::kBlockQ;
  const int warp_row = first_row + warp * Shape::kWarpRows;
  const int last_row = sequence.query_length - 1;
  const device::VisibleKeys visible(sequence);
  const device::TileRanges tiles(visible, first_row, Shape::kBlockQ, warp_row, Shape::kWarpRows,
                                 last_row, kBlockKv);
  const device::ScoreFactor factor(sequence.softmax_scale);
  const device::ScoreOptions options(sequence, head, sequence.softmax_scale);
  if (threadIdx.x == 0) shared.source.Set(params, sequence, head / params.group, sizeof(Element));

  // q: [kBlockQ][kHeadDim]; every warp loads, reads and at last overwrites its own rows only.
  std::uint16_t* const warp_q = shared.q + warp * Shape::kWarpRows * kHeadDim;
  {
    const std::int64_t row_bytes = sequence.q_token_stride * sizeof(Element);
    const char* q = static_cast<const char*>(sequence.q) +
                    head * sequence.q_head_stride * sizeof(Element) + warp_row * row_bytes;
    device::LoadQueryRows<kHeadDim, Shape::kWarpRows>(
        static_cast<std::uint32_t>(__cvta_generic_to_shared(warp_q)), 0, q, row_bytes,
        last_row + 1 - warp_row, valid_chunks, lane);
    ptx::CpAsyncCommitGroup();
  }
  __syncthreads();  // shared.source is complete

  const device::KvSource& source = shared.source;
  const std::uint32_t ring_k =
      static_cast<std::uint32_t>(__cvta_generic_to_shared(shared.ring.k[0]));
  const std::uint32_t ring_v =
      static_cast<std::uint32_t>(__cvta_generic_to_shared(shared.ring.v[0]));
  constexpr int kStageBytes = Shape::kKvElements * 2;
  Loader loader(source, static_cast<std::uint32_t>(__cvta_generic_to_shared(&shared.source)),
                tiles.first * kBlockKv, valid_chunks, warp, lane);
  // Starts the copy of the prepared tile `tile` into its stage.
  auto load_tile = [&](int tile) {
    if (tile < tiles.end) {
      const std::uint32_t stage = (tile - tiles.first) % kStages * kStageBytes;
      loader.Load(ring_k + stage, ring_v + stage, source, tile * kBlockKv);
    }
    ptx::CpAsyncCommitGroup();
  };
  if constexpr (kStages == 1) {
    if (tiles.first < tiles.end) loader.LoadKeys(ring_k, source, tiles.first * kBlockKv);
    ptx::CpAsyncCommitGroup();
  } else {
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      load_tile(tiles.first + i);
      loader.FetchEntries(source, (tiles.first + i + 1) * kBlockKv);
      loader.Prepare(source, (tiles.first + i + 1) * kBlockKv);
    }
  }

  // Q has landed before it is taken.
  ptx::CpAsyncWaitGroup<kStages == 1 ? 1 : kStages - 1>();
  __syncwarp();
  const Query query(warp_q, kAll ? 1.0F : factor.query_factor, lane);

  device::OnlineSoftmax<kFragments> softmax;
  float accumulator[kFragments][kHeadDim / 8][4] = {};
  float s[kFragments][kBlockKv / 8][4];
  // s: [rows of the warp][kBlockKv] logits of a tile, masked.
  const auto score = [&](int tile, std::uint32_t k_tile) {
    device::ScoreTile<Arch, Element, kHeadDim>(s, k_tile, lane, query);
    if constexpr (kAll) device::ApplyOptions(s, options, warp_row, tile * kBlockKv, lane);
    if (__builtin_expect(tiles.NeedsMask(tile), 0)) {
      device::MaskTile(s, visible, warp_row, tile * kBlockKv, lane);
    }
  };
  const auto accumulate = [&](std::uint32_t v_tile) {
    softmax.Step(s, accumulator, kAll ? device::kLog2E : factor.c);
    device::AccumulateTile<Arch, Element, kHeadDim>(accumulator, s, v_tile, lane);
  };
  for (int tile = tiles.first; tile < tiles.end; ++tile) {
    if constexpr (kStages == 1) {
      // K has landed for every thread, and all warps are done with the V of the tile before.
      ptx::CpAsyncWaitGroup<0>();
      __syncthreads();
      loader.LoadValues(ring_v, source, tile * kBlockKv);
      ptx::CpAsyncCommitGroup();
      loader.FetchEntries(source, (tile + 1) * kBlockKv);
      const bool skips = tiles.Skips(tile);
      if (!skips) score(tile, ring_k);
      loader.Prepare(source, (tile + 1) * kBlockKv);
      // V has landed, and all warps are done with K.
      ptx::CpAsyncWaitGroup<0>();
      __syncthreads();
      if (tile + 1 < tiles.end) loader.LoadKeys(ring_k, source, (tile + 1) * kBlockKv);
      ptx::CpAsyncCommitGroup();
      if (!skips) accumulate(ring_v);
    } else {
      // Tile `tile` has landed for every thread, and all warps are done with the stage that the
      // next load overwrites.
      ptx::CpAsyncWaitGroup<kStages - 2>();
      __syncthreads();
      load_tile(tile + kStages - 1);
      loader.FetchEntries(source, (tile + kStages) * kBlockKv);
      if (!tiles.Skips(tile)) {
        const std::uint32_t stage = (tile - tiles.first) % kStages * kStageBytes;
        score(tile, ring_k + stage);
        accumulate(ring_v + stage);
      }
      loader.Prepare(source, (tile + kStages) * kBlockKv);
    }
  }

  if (warp_row > last_row) return;
  device::StorePrefillRows<Element, kHeadDim>(
      params, params.attention.sequences[task.sequence], head, warp_row, accumulator, softmax, kAll,
      reinterpret_cast<std::uint32_t*>(warp_q), place.task, lane);
}

static_assert(PrefillShape<64, PrefillTile<64>>::kBlockQ == PrefillBlockQ(64));
static_assert(PrefillShape<128, PrefillTile<128>>::kBlockQ == PrefillBlockQ(128));
static_assert(PrefillShape<256, PrefillTile<256>>::kBlockQ == PrefillBlockQ(256));

template <class Element, int kHeadDim, PrefillVariant kVariant, class Tile>
cudaError_t PreparePrefill(cudaFuncAttributes* attributes) {
  return PrepareKernel(
      reinterpret_cast<const void*>(&PrefillKernel<Element, kHeadDim, kVariant, Tile>),
      sizeof(typename PrefillShape<kHeadDim, Tile>::SharedMemory), attributes);
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
