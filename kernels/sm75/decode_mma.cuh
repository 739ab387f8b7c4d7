// Fused decode attention on tensor cores, sm_75 (T4): few query rows, long paged KV.
//
// Algorithm  device/decode_body.cuh. No cp.async here: V and the next slice's K go through one
//            register buffer in turn, in flight during Q K^T and during P V. Splits are planned
//            on the host (cuda/decode_plan.h); any/combine_splits merges them.
// Warps      4 (d 256: 2), slices interleaved: warp w takes keys first + 16 kWarps i + 16 w.
// Shared     One slice of 16 keys x (K + V) a warp: 32 KiB a CTA at d 128 and 256, 16 KiB at d
//            64. The merge of the warps' states takes the same place. At d 256 Q (8 KiB a warp)
//            stays in shared memory: accumulator and buffer leave it no registers.
// Roofline   DRAM-bound: 4 bytes of K and V a dim and key against 4 x group FLOP. In flight 4 KiB
//            a warp at d 128, 16 to 32 KiB an SM, where 320 GB/s x 0.65 us ask for 5 KiB.
// Limits     rows and addresses aligned to 16 bytes; lengths up to kMaxDeviceTokens.
#pragma once

#include <cstdint>

#include "kernels/any/launch_decode.cuh"
#include "kernels/cuda/prepare_kernel.h"
#include "kernels/device/decode_body.cuh"
#include "kernels/device/register_tile_loader.cuh"
#include "kernels/sm75/arch.cuh"
#include "kernels/sm75/decode_mma.h"

namespace attnd::kernels::sm75 {

template <int kHeadDim_>
struct DecodeTile {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kWarps = kHeadDim == 256 ? 2 : 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRows = kDecodeBlockRows;
  static constexpr bool kQueryInRegisters = kHeadDim != 256;
  static constexpr int kSliceKeys = 16;
  static constexpr int kStepKeys = kSliceKeys * kWarps;
  static constexpr int kCtasPerSm = kHeadDim == 256 ? 1 : 2;
  // V is asked for after the scores: its 64 registers and the options' arithmetic do not fit
  // together. A slice of 16 KiB then takes about 2500 clocks a warp, and two warps on each of 40
  // SMs still ask for twice what 320 GB/s bring.
  static constexpr bool kLateValues = kHeadDim == 256;

  struct Slice {
    alignas(128) std::uint16_t k[kSliceKeys * kHeadDim];
    alignas(128) std::uint16_t v[kSliceKeys * kHeadDim];
  };
  // The warps' states at the end.
  struct Merge {
    float accumulator[kWarps][kRows][kHeadDim];
    float row_max[kWarps][kRows];
    float row_sum[kWarps][kRows];
  };
  struct SharedMemory {
    union {
      Slice slices[kWarps];
      Merge merge;
    };
    // Used where Q does not fit in registers; elsewhere it passes through the slice.
    alignas(128)
        std::uint16_t q[kQueryInRegisters ? 1 : kWarps][kQueryInRegisters ? 64 : kRows * kHeadDim];
    device::KvSource source;
  };
  static_assert(sizeof(SharedMemory) <= 64 * 1024, "all the shared memory that an SM has");
};

// A warp's slice in shared memory, and the next one on its way in registers. Q lies in the slice's
// place until it is taken.
template <int kHeadDim>
class RegisterSlices {
  using Tile = DecodeTile<kHeadDim>;
  using Loader = device::RegisterTileLoader<kHeadDim, Tile::kSliceKeys, 1, Tile::kStepKeys>;

 public:
  __device__ __forceinline__ RegisterSlices(typename Tile::SharedMemory& shared, int warp, int lane)
      : source_(shared.source),
        slice_(shared.slices[warp]),
        query_(Tile::kQueryInRegisters ? shared.slices[warp].k : shared.q[warp]),
        address_(static_cast<std::uint32_t>(__cvta_generic_to_shared(&slice_))),
        lane_(lane) {}
  __device__ __forceinline__ std::uint16_t* QueryRows() const { return query_; }
  __device__ __forceinline__ void CopyQuery(int offset, const void* from, bool exists) const {
    *reinterpret_cast<uint4*>(reinterpret_cast<char*>(query_) + offset) =
        exists ? __ldg(static_cast<const uint4*>(from)) : make_uint4(0, 0, 0, 0);
  }
  __device__ __forceinline__ void Start(int first_key, int slices, int valid_chunks) {
    first_key_ = first_key;
    slices_ = slices;
    loader_ = Loader(source_, static_cast<std::uint32_t>(__cvta_generic_to_shared(&source_)),
                     first_key, valid_chunks, 0, lane_);
    if (slices > 0) loader_.FetchK(source_, first_key, buffer_);
  }
  __device__ __forceinline__ void WaitForQuery() const { __syncwarp(); }
  __device__ __forceinline__ void AcquireKey(int slice) {
    __syncwarp();  // all lanes are done with Q or the slice before
    loader_.Store(reinterpret_cast<char*>(slice_.k), buffer_);
    __syncwarp();
    if constexpr (!Tile::kLateValues) loader_.FetchV(source_, FirstKey(slice), buffer_);
    if (slice + 1 < slices_) loader_.FetchEntries(source_, FirstKey(slice + 1));
  }
  __device__ __forceinline__ void AcquireValue(int slice) {
    if constexpr (Tile::kLateValues) loader_.FetchV(source_, FirstKey(slice), buffer_);
    loader_.Store(reinterpret_cast<char*>(slice_.v), buffer_);
    __syncwarp();
    if (slice + 1 >= slices_) return;
    loader_.Prepare(source_, FirstKey(slice + 1));
    loader_.FetchK(source_, FirstKey(slice + 1), buffer_);
  }
  __device__ __forceinline__ std::uint32_t Key(int /*slice*/) const { return address_; }
  __device__ __forceinline__ std::uint32_t Value(int /*slice*/) const {
    return address_ + static_cast<int>(sizeof(typename Tile::Slice)) / 2;
  }
  __device__ __forceinline__ void Release(int /*slice*/) const {}
  __device__ __forceinline__ void Finish() const {}

 private:
  __device__ __forceinline__ int FirstKey(int slice) const {
    return first_key_ + slice * Tile::kStepKeys;
  }
  const device::KvSource& source_;
  typename Tile::Slice& slice_;
  std::uint16_t* query_;
  std::uint32_t address_;
  int lane_, first_key_, slices_;
  Loader loader_;
  typename Loader::Buffer buffer_;
};

template <class Element, int kHeadDim>
__global__ void __launch_bounds__(DecodeTile<kHeadDim>::kThreads, DecodeTile<kHeadDim>::kCtasPerSm)
    DecodeMmaKernel(const __grid_constant__ CudaLaunchParams params) {
  using Tile = DecodeTile<kHeadDim>;
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  device::DecodeBody<Arch, Element, Tile, RegisterSlices<kHeadDim>>(
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

}  // namespace attnd::kernels::sm75
