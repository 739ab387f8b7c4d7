// Fused decode attention on tensor cores, sm_80 and newer: few query rows, long paged KV.
//
// Algorithm  device/decode_body.cuh, with a private cp.async ring a warp. Splits are planned on
//            the host (cuda/decode_plan.h); states of several splits go to the partials and
//            any/combine_splits merges them in KV order.
// Warps      4, slices interleaved: warp w takes keys first + 64 i + 16 w.
// Shared     Ring of 3 stages (d 64: 4) x 16 keys x (K + V) a warp: 24 KiB at d 128, 96 KiB a
//            CTA, two CTAs an SM; two thirds of it are in flight, 128 KiB an SM against the 24
//            KiB that 4.6 TB/s x 1.1 us ask for. Q passes through the last stage into registers.
// Roofline   4 bytes of K and V a dim and key against 4 x group FLOP: HBM-bound up to group 64.
//            64 x 8192 tokens x 8 KV heads x 128 dims = 2.1 GB: 467 us at 4.6 TB/s.
// Limits     rows and addresses aligned to 16 bytes; lengths up to kMaxDeviceTokens.
#pragma once

#include <cstdint>

#include "kernels/any/launch_decode.cuh"
#include "kernels/cuda/prepare_kernel.h"
#include "kernels/device/async_tile_loader.cuh"
#include "kernels/device/decode_body.cuh"
#include "kernels/sm80/arch.cuh"
#include "kernels/sm80/decode_mma.h"

namespace attnd::kernels::sm80 {

template <int kHeadDim_>
struct DecodeTile {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRows = kDecodeBlockRows;
  static constexpr bool kQueryInRegisters = true;
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

// A warp's ring of slices, filled kStages - 1 ahead. Q lies in the stage that is written last, so
// that the first slices need not wait for it.
template <int kHeadDim>
class AsyncSlices {
  using Tile = DecodeTile<kHeadDim>;
  using Loader = device::AsyncTileLoader<kHeadDim, Tile::kSliceKeys, 1, Tile::kStepKeys>;
  static constexpr int kStages = Tile::kStages;

 public:
  __device__ __forceinline__ AsyncSlices(typename Tile::SharedMemory& shared, int warp, int lane)
      : source_(shared.source),
        ring_(shared.ring[warp]),
        address_(static_cast<std::uint32_t>(__cvta_generic_to_shared(ring_))),
        lane_(lane) {}
  __device__ __forceinline__ std::uint16_t* QueryRows() const { return ring_[kStages - 1].k; }
  __device__ __forceinline__ void CopyQuery(int offset, const void* from, bool exists) const {
    ptx::CpAsync16(Key(kStages - 1) + offset, from, exists ? device::kChunkBytes : 0);
  }
  __device__ __forceinline__ void Start(int first_key, int slices, int valid_chunks) {
    ptx::CpAsyncCommitGroup();
    first_key_ = first_key;
    slices_ = slices;
    loader_ = Loader(source_, static_cast<std::uint32_t>(__cvta_generic_to_shared(&source_)),
                     first_key, valid_chunks, 0, lane_);
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      Load(i);
      loader_.Prepare(source_, FirstKey(i + 1));
    }
  }
  __device__ __forceinline__ void WaitForQuery() const {
    ptx::CpAsyncWaitGroup<kStages - 1>();
    __syncwarp();
  }
  __device__ __forceinline__ void AcquireKey(int slice) {
    ptx::CpAsyncWaitGroup<kStages - 2>();
    __syncwarp();  // landed for all lanes, and all are done with the slice before it
    Load(slice + kStages - 1);
  }
  __device__ __forceinline__ void AcquireValue(int /*slice*/) const {}  // came with the key
  __device__ __forceinline__ std::uint32_t Key(int slice) const {
    return address_ + static_cast<int>(slice % kStages * sizeof(typename Tile::Slice));
  }
  __device__ __forceinline__ std::uint32_t Value(int slice) const {
    return Key(slice) + static_cast<int>(sizeof(typename Tile::Slice)) / 2;
  }
  __device__ __forceinline__ void Release(int slice) {
    loader_.Prepare(source_, FirstKey(slice + kStages));
  }
  __device__ __forceinline__ void Finish() const { ptx::CpAsyncWaitGroup<0>(); }

 private:
  __device__ __forceinline__ int FirstKey(int slice) const {
    return first_key_ + slice * Tile::kStepKeys;
  }
  __device__ __forceinline__ void Load(int slice) {
    if (slice < slices_) {
      loader_.Load(Key(slice), Value(slice), source_, FirstKey(slice));
      loader_.FetchEntries(source_, FirstKey(slice + 1));
    }
    ptx::CpAsyncCommitGroup();
  }

  const device::KvSource& source_;
  typename Tile::Slice* ring_;
  std::uint32_t address_;
  int lane_, first_key_, slices_;
  Loader loader_;
};

template <class Element, int kHeadDim>
__global__ void __launch_bounds__(DecodeTile<kHeadDim>::kThreads, DecodeTile<kHeadDim>::kCtasPerSm)
    DecodeMmaKernel(const __grid_constant__ CudaLaunchParams params) {
  using Tile = DecodeTile<kHeadDim>;
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  device::DecodeBody<Arch, Element, Tile, AsyncSlices<kHeadDim>>(
      params, *reinterpret_cast<typename Tile::SharedMemory*>(shared_bytes));
}

template <class Element, int kHeadDim>
cudaError_t PrepareDecodeMma(cudaFuncAttributes* attributes) {
  return PrepareKernel(reinterpret_cast<const void*>(&DecodeMmaKernel<Element, kHeadDim>),
                       sizeof(typename DecodeTile<kHeadDim>::SharedMemory), attributes);
}

template <class Element, int kHeadDim>
cudaError_t LaunchDecodeMma(const CudaLaunchParams& params, cudaStream_t stream) {
  return any::LaunchDecode<Element, DecodeTile<kHeadDim>>(&DecodeMmaKernel<Element, kHeadDim>,
                                                          params, stream);
}

}  // namespace attnd::kernels::sm80
