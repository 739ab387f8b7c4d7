// Fused prefill attention for sm_75 (T4): FP16, FP32 accumulation.
//
// Algorithm  As sm80/prefill.cuh: one CTA owns a tile of query rows of one head, streams its KV
//            tiles and keeps (row_max, row_sum, accumulator) in registers.
// Tiles      d 64: 128 rows x 64 keys. d 128: 128 x 32; with all options 128 x 16, since 32 keys of
//            scores and the options' arithmetic do not fit in the registers. d 256: 64 x 16.
// Warps      4. 32 rows each at d 64 and 128: with 16 the K and V fragments keep shared memory
//            (64 B/clk an SM) as busy as the tensor pipe. 16 rows at d 256, where 32 do not fit
//            in registers and shared memory binds.
// Loads      No cp.async here: K and V go through one register buffer in turn. V's loads are in
//            flight during Q K^T, the next K's during softmax and P V. Two barriers a tile. At d
//            256 the first K is on its way beside Q, and the end of the loop stays in shared memory
//            (kEarlyKey): 7 % there, but 12 % slower at d 128, whose loop then schedules worse.
// Shared     d 64: Q (16 KiB) is taken into registers first, K + V (8 + 8 KiB) reuse its place; two
//            CTAs an SM. d 128: Q + K + V 32 + 8 + 8 KiB, one CTA. d 256: K + V (8 + 8 KiB) in the
//            place of Q (32 KiB), two CTAs take the SM's 64 KiB.
// Roofline   4 * head_dim FLOP a score against 65 TFLOP/s: 0.5 ms for 16 heads x 2048^2 at d 128.
//            Per score also 1/16 ex2 slot, so ex2 is 12 % of that at d 128, 25 % at d 64.
// Limits     rows and addresses aligned to 16 bytes; lengths up to kMaxDeviceTokens.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/prepare_kernel.h"
#include "kernels/device/attention_mask.cuh"
#include "kernels/device/attention_tile.cuh"
#include "kernels/device/kv_source.cuh"
#include "kernels/device/online_softmax.cuh"
#include "kernels/device/prefill_epilogue.cuh"
#include "kernels/device/prefill_rows.cuh"
#include "kernels/device/register_tile_loader.cuh"
#include "kernels/device/score_options.cuh"
#include "kernels/sm75/arch.cuh"
#include "kernels/sm75/prefill.h"

namespace attnd::kernels::sm75 {

template <PrefillVariant kVariant>
struct PrefillTile<64, kVariant> {
  static constexpr int kWarps = 4, kFragments = 2, kBlockKv = 64, kCtasPerSm = 2;
  static constexpr bool kQueryInRegisters = true, kQueryUnderKv = true, kEarlyKey = false;
};
template <PrefillVariant kVariant>
struct PrefillTile<128, kVariant> {
  static constexpr int kWarps = 4, kFragments = 2, kCtasPerSm = 1;
  static constexpr int kBlockKv = kVariant == PrefillVariant::kAll ? 16 : 32;
  static constexpr bool kQueryInRegisters = false, kQueryUnderKv = false, kEarlyKey = false;
};
template <PrefillVariant kVariant>
struct PrefillTile<256, kVariant> {
  static constexpr int kWarps = 4, kFragments = 1, kBlockKv = 16, kCtasPerSm = 2;
  static constexpr bool kQueryInRegisters = true, kQueryUnderKv = true, kEarlyKey = true;
};

template <int kHeadDim, class Tile>
struct PrefillShape : Tile {
  static constexpr int kThreads = Tile::kWarps * 32;
  static constexpr int kWarpRows = Tile::kFragments * 16;
  static constexpr int kBlockQ = Tile::kWarps * kWarpRows;

  struct KeysAndValues {
    alignas(128) std::uint16_t k[Tile::kBlockKv * kHeadDim];
    alignas(128) std::uint16_t v[Tile::kBlockKv * kHeadDim];
  };
  // What the main loop needs rarely or once a tile: registers are short.
  struct LoopState {
    device::KvSource source;
    int4 tiles[Tile::kWarps];  // some_first, some_end, full_first, full_end of TileRanges
    int2 rows[Tile::kWarps];   // the warp's first query row, the CTA's end tile
    device::VisibleKeys visible;
    device::ScoreOptions options;
  };
  struct SeparateQuery {
    alignas(128) std::uint16_t q[kBlockQ * kHeadDim];
    KeysAndValues kv;
    LoopState state;
  };
  // Nothing outside the union: at d 256 two CTAs take the SM's 64 KiB to the last byte.
  struct SharedQuery {
    union {
      alignas(128) std::uint16_t q[kBlockQ * kHeadDim];
      struct {
        KeysAndValues kv;
        LoopState state;
      };
    };
  };
  using SharedMemory = std::conditional_t<Tile::kQueryUnderKv, SharedQuery, SeparateQuery>;
  static_assert(!Tile::kQueryUnderKv || Tile::kQueryInRegisters);
  static_assert(Tile::kCtasPerSm * sizeof(SharedMemory) <= 64 * 1024,
                "all the shared memory that an SM has");
};

template <class Element, int kHeadDim, PrefillVariant kVariant, class Tile>
__global__ void __launch_bounds__(PrefillShape<kHeadDim, Tile>::kThreads, Tile::kCtasPerSm)
    PrefillKernel(const __grid_constant__ CudaLaunchParams params) {
  using Shape = PrefillShape<kHeadDim, Tile>;
  using Loader = device::RegisterTileLoader<kHeadDim, Tile::kBlockKv, Tile::kWarps>;
  using Query = device::QueryOperands<Element, kHeadDim, Tile::kFragments, Tile::kQueryInRegisters>;
  constexpr int kFragments = Tile::kFragments;
  constexpr int kBlockKv = Tile::kBlockKv;
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
  const auto set_state = [&] {
    if (threadIdx.x == 0) {
      shared.state.source.Set(params, sequence, head / params.group, sizeof(Element));
      shared.state.visible = visible;
      if constexpr (kAll) {
        shared.state.options = device::ScoreOptions(sequence, head, sequence.softmax_scale);
      }
    }
    if (lane == 0) {
      shared.state.tiles[warp] =
          make_int4(tiles.some_first, tiles.some_end, tiles.full_first, tiles.full_end);
      shared.state.rows[warp] = make_int2(warp_row, tiles.end);
    }
  };
  if constexpr (!Tile::kQueryUnderKv) set_state();
  Loader loader;
  typename Loader::Buffer buffer;
  const auto source_address =
      static_cast<std::uint32_t>(__cvta_generic_to_shared(&shared.state.source));
  if constexpr (Tile::kEarlyKey) {
    device::KvSource first_source;
    first_source.Set(params, sequence, head / params.group, sizeof(Element));
    loader = Loader(first_source, source_address, tiles.first * kBlockKv, valid_chunks, warp, lane);
    if (tiles.first < tiles.end) loader.FetchFirstK(first_source, tiles.first * kBlockKv, buffer);
  }

  // q: [kBlockQ][kHeadDim]; every warp loads, reads and at last overwrites its own rows only.
  std::uint16_t* const warp_q = shared.q + warp * Shape::kWarpRows * kHeadDim;
  {
    const std::int64_t row_bytes = sequence.q_token_stride * sizeof(Element);
    const char* q = static_cast<const char*>(sequence.q) +
                    head * sequence.q_head_stride * sizeof(Element) + warp_row * row_bytes;
    device::CopyQueryRows<kHeadDim, Shape::kWarpRows>(reinterpret_cast<char*>(warp_q), q, row_bytes,
                                                      last_row + 1 - warp_row, valid_chunks, lane);
    __syncwarp();
  }
  const Query query(warp_q, kAll ? 1.0F : factor.query_factor, lane);
  if constexpr (Tile::kQueryUnderKv) {
    __syncthreads();  // all warps have taken their Q, whose place the rest reuses
    set_state();
  }

  const device::KvSource& source = shared.state.source;
  const auto tiles_address =
      static_cast<std::uint32_t>(__cvta_generic_to_shared(&shared.state.tiles[warp]));
  const auto rows_address =
      static_cast<std::uint32_t>(__cvta_generic_to_shared(&shared.state.rows[warp]));
  char* const k_tile = reinterpret_cast<char*>(shared.kv.k);
  char* const v_tile = reinterpret_cast<char*>(shared.kv.v);
  const auto k_address = static_cast<std::uint32_t>(__cvta_generic_to_shared(k_tile));
  const auto v_address = static_cast<std::uint32_t>(__cvta_generic_to_shared(v_tile));
  if constexpr (Tile::kEarlyKey) {
    if (tiles.first < tiles.end) loader.Store(k_tile, buffer);
    __syncwarp();  // this warp's part of the state; the main loop's barrier is for the rest
  } else {
    __syncthreads();  // shared.state is complete
    loader = Loader(source, source_address, tiles.first * kBlockKv, valid_chunks, warp, lane);
    if (tiles.first < tiles.end) {
      loader.FetchK(source, tiles.first * kBlockKv, buffer);
      loader.Store(k_tile, buffer);
    }
  }

  device::OnlineSoftmax<kFragments> softmax;
  float accumulator[kFragments][kHeadDim / 8][4] = {};
  const auto end_tile = [&] {
    if constexpr (Tile::kEarlyKey) {
      return ptx::LdShared64(rows_address).y;
    } else {
      return tiles.end;
    }
  };
  for (int tile = tiles.first; tile < end_tile(); ++tile) {
    const int2 some = ptx::LdShared64(tiles_address);
    const bool skips = tile < some.x || tile >= some.y;
    __syncthreads();  // K of this tile is complete, and all warps are done with the V before it
    loader.FetchV(source, tile * kBlockKv, buffer);
    loader.FetchEntries(source, (tile + 1) * kBlockKv);
    float s[kFragments][kBlockKv / 8][4];
    if (!skips) {
      device::ScoreTile<Arch, Element, kHeadDim>(s, k_address, lane, query);
      if constexpr (kAll) {
        device::ApplyOptions(s, shared.state.options, ptx::LdShared64(rows_address).x,
                             tile * kBlockKv, lane);
      }
      const int2 full = ptx::LdShared64(tiles_address + 8);
      if (__builtin_expect(tile < full.x || tile >= full.y, 0)) {
        device::MaskTile(s, shared.state.visible, ptx::LdShared64(rows_address).x, tile * kBlockKv,
                         lane);
      }
    }
    loader.Store(v_tile, buffer);
    __syncthreads();  // V is complete, and all warps are done with K
    if (tile + 1 < end_tile()) {
      loader.Prepare(source, (tile + 1) * kBlockKv);
      loader.FetchK(source, (tile + 1) * kBlockKv, buffer);
    }
    if (!skips) {
      softmax.Step(s, accumulator, kAll ? device::kLog2E : factor.c);
      device::AccumulateTile<Arch, Element, kHeadDim>(accumulator, s, v_address, lane);
    }
    if (tile + 1 < end_tile()) loader.Store(k_tile, buffer);
  }

  if constexpr (Tile::kQueryUnderKv) __syncthreads();  // other warps may still read V
  if (warp_row > last_row) return;
  device::StorePrefillRows<Element, kHeadDim>(
      params, params.attention.sequences[task.sequence], head, warp_row, accumulator, softmax, kAll,
      reinterpret_cast<std::uint32_t*>(warp_q), place.task, lane);
}

template <int kHeadDim>
inline constexpr int kTileRows =
    PrefillShape<kHeadDim, PrefillTile<kHeadDim, PrefillVariant::kPlain>>::kBlockQ;
static_assert(kTileRows<64> == PrefillBlockQ(64));
static_assert(kTileRows<128> == PrefillBlockQ(128));
static_assert(kTileRows<256> == PrefillBlockQ(256));

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

}  // namespace attnd::kernels::sm75
