// Before and after naive's products: q, k and v into contiguous matrices, o out of them.
//
// Algorithm  One thread a 16-byte piece. Rows that do not exist (padding of a chunk to its longest
//            sequence) become zeros, so that a product never reads what nobody wrote.
// Roofline   DRAM-bound: every byte of q, and of k and v where they are gathered, read and written
//            once; of o too.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/device/kv_source.cuh"
#include "kernels/device/prefill_epilogue.cuh"
#include "kernels/naive/naive_kernels.h"

namespace attnd::kernels::naive {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float AsFloat(float value) { return value; }
__device__ __forceinline__ float AsFloat(__half value) { return __half2float(value); }
__device__ __forceinline__ float AsFloat(__nv_bfloat16 value) { return __bfloat162float(value); }

unsigned Blocks(std::int64_t pieces) {
  return static_cast<unsigned>((pieces + kThreads - 1) / kThreads);
}

// `count` elements of a row from `from` as one 16-byte piece, zeros behind them.
template <class Element>
__device__ __forceinline__ uint4 ReadPiece(const Element* from, int count) {
  constexpr int kElements = 16 / sizeof(Element);
  if (count >= kElements && reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
    return *reinterpret_cast<const uint4*>(from);
  }
  alignas(16) Element piece[kElements];
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    piece[i] = i < count ? from[i] : static_cast<Element>(0.0F);
  }
  return *reinterpret_cast<const uint4*>(piece);
}

// A matrix row of a chunk: which sequence, head and token it is.
struct ChunkRow {
  int sequence, head, token;
  __device__ __forceinline__ ChunkRow(const CudaLaunchParams& params, const NaiveChunk& chunk,
                                      std::int64_t row)
      : sequence(0), head(0), token(static_cast<int>(row % chunk.query_rows)) {
    const std::int64_t head_row = row / chunk.query_rows;  // (sequence, KV head, member of a group)
    head = static_cast<int>(head_row % params.attention.num_heads);
    sequence = chunk.first_sequence + static_cast<int>(head_row / params.attention.num_heads);
  }
};

template <class Element>
__global__ void __launch_bounds__(kThreads)
    GatherQueriesKernel(const __grid_constant__ CudaLaunchParams params,
                        const __grid_constant__ ChunkMatrices at, std::int64_t rows) {
  constexpr int kElements = 16 / sizeof(Element);
  const int pieces = at.width / kElements;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t row = index / pieces;
  if (row >= rows) return;
  const int dim = static_cast<int>(index % pieces) * kElements;
  const ChunkRow here(params, at.chunk, row);
  const AttentionSequence& sequence = params.attention.sequences[here.sequence];
  uint4 piece = make_uint4(0, 0, 0, 0);
  if (here.token < sequence.query_length) {
    piece =
        ReadPiece(static_cast<const Element*>(sequence.q) + here.token * sequence.q_token_stride +
                      here.head * sequence.q_head_stride + dim,
                  params.attention.head_dim - dim);
  }
  *reinterpret_cast<uint4*>(static_cast<Element*>(at.q) + row * at.width + dim) = piece;
  if (at.chunk.keys > 0) return;
  // There will be no product: o is zero.
  const int bytes = params.attention.partial ? 4 : sizeof(Element);
  auto* const o = static_cast<char*>(at.o) + (row * at.width + dim) * bytes;
  for (int i = 0; i < bytes / static_cast<int>(sizeof(Element)); ++i) {
    reinterpret_cast<uint4*>(o)[i] = make_uint4(0, 0, 0, 0);
  }
}

// Grid: x over (key, piece) of one (sequence, KV head), which is y.
template <class Element>
__global__ void __launch_bounds__(kThreads)
    GatherKeysKernel(const __grid_constant__ CudaLaunchParams params,
                     const __grid_constant__ ChunkMatrices at) {
  __shared__ device::KvSource source;
  constexpr int kElements = 16 / sizeof(Element);
  const std::int64_t matrix = blockIdx.y + static_cast<std::int64_t>(blockIdx.z) * gridDim.y;
  if (matrix >= static_cast<std::int64_t>(at.chunk.num_sequences) * params.attention.num_kv_heads) {
    return;
  }
  const int sequence_index =
      at.chunk.first_sequence + static_cast<int>(matrix / params.attention.num_kv_heads);
  const int kv_head = static_cast<int>(matrix % params.attention.num_kv_heads);
  if (threadIdx.x == 0) {
    source.Set(params, params.attention.sequences[sequence_index], kv_head, sizeof(Element));
  }
  __syncthreads();
  const int pieces = at.width / kElements;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int key = static_cast<int>(index / pieces);
  if (key >= at.chunk.keys) return;
  const int dim = static_cast<int>(index % pieces) * kElements;
  uint4 k = make_uint4(0, 0, 0, 0);
  uint4 v = k;
  if (key < source.kv_length) {
    bool readable = true;
    std::int64_t k_offset = static_cast<std::int64_t>(key) * source.k_row_bytes;
    std::int64_t v_offset = static_cast<std::int64_t>(key) * source.v_row_bytes;
    if (source.page_table != nullptr) {
      const std::uint32_t entry = source.Entry(key);
      readable = source.EntryIsValid(entry);
      k_offset = v_offset = entry * static_cast<std::int64_t>(kPageUnitBytes) +
                            (key & source.page_mask) * source.k_row_bytes;
    }
    if (readable) {
      const int count = params.attention.head_dim - dim;
      k = ReadPiece(reinterpret_cast<const Element*>(source.k + k_offset) + dim, count);
      v = ReadPiece(reinterpret_cast<const Element*>(source.v + v_offset) + dim, count);
    }
  }
  const std::int64_t to = (matrix * at.chunk.keys + key) * at.width + dim;
  *reinterpret_cast<uint4*>(static_cast<Element*>(at.k) + to) = k;
  *reinterpret_cast<uint4*>(static_cast<Element*>(at.v) + to) = v;
}

// Type: of the products' output and of o. One thread a 16-byte piece.
template <class Type>
__global__ void __launch_bounds__(kThreads)
    ScatterKernel(const __grid_constant__ CudaLaunchParams params,
                  const __grid_constant__ ChunkMatrices at, std::int64_t rows) {
  constexpr int kElements = 16 / sizeof(Type);
  const int pieces = (at.width + kElements - 1) / kElements;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t row = index / pieces;
  if (row >= rows) return;
  const int dim = static_cast<int>(index % pieces) * kElements;
  const ChunkRow here(params, at.chunk, row);
  const AttentionSequence& sequence = params.attention.sequences[here.sequence];
  const int count = min(params.attention.head_dim - dim, kElements);
  if (here.token >= sequence.query_length || count <= 0) return;
  alignas(16) Type piece[kElements];
  *reinterpret_cast<uint4*>(piece) =
      *reinterpret_cast<const uint4*>(static_cast<const Type*>(at.o) + row * at.width + dim);
  auto* to = static_cast<Type*>(sequence.o) + here.token * sequence.o_token_stride +
             here.head * sequence.o_head_stride + dim;
  float poison = 0.0F;
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    if (i < count) poison = fmaf(AsFloat(piece[i]), 0.0F, poison);
  }
  if (count == kElements && reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(piece);
  } else {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if (i < count) to[i] = piece[i];
    }
  }
  if (poison != 0.0F) device::FlagNonfinite(params, here.sequence, here.head);
}

std::int64_t Rows(const CudaLaunchParams& params, const NaiveChunk& chunk) {
  return std::int64_t{chunk.num_sequences} * params.attention.num_heads * chunk.query_rows;
}

}  // namespace

template <class Element>
cudaError_t LaunchGather(const CudaLaunchParams& params, const ChunkMatrices& matrices,
                         cudaStream_t stream) {
  constexpr int kElements = 16 / sizeof(Element);
  const NaiveChunk& chunk = matrices.chunk;
  const int pieces = matrices.width / kElements;
  const std::int64_t rows = Rows(params, chunk);
  GatherQueriesKernel<Element>
      <<<Blocks(rows * pieces), kThreads, 0, stream>>>(params, matrices, rows);
  if (!chunk.keys_in_place && chunk.keys > 0) {
    constexpr std::int64_t kMaxGridY = 32768;
    const std::int64_t count = std::int64_t{chunk.num_sequences} * params.attention.num_kv_heads;
    const dim3 grid(Blocks(std::int64_t{chunk.keys} * pieces),
                    static_cast<unsigned>(count < kMaxGridY ? count : kMaxGridY),
                    static_cast<unsigned>((count + kMaxGridY - 1) / kMaxGridY));
    GatherKeysKernel<Element><<<grid, kThreads, 0, stream>>>(params, matrices);
  }
  return cudaGetLastError();
}

template <class Element>
cudaError_t LaunchScatter(const CudaLaunchParams& params, const ChunkMatrices& matrices,
                          cudaStream_t stream) {
  const std::int64_t rows = Rows(params, matrices.chunk);
  const auto launch = [&](auto type, auto kernel) {
    constexpr int kElements = 16 / sizeof(type);
    const int pieces = (matrices.width + kElements - 1) / kElements;
    kernel<<<Blocks(rows * pieces), kThreads, 0, stream>>>(params, matrices, rows);
  };
  if (params.attention.partial) {
    launch(float{}, ScatterKernel<float>);
  } else {
    launch(Element{}, ScatterKernel<Element>);
  }
  return cudaGetLastError();
}

template cudaError_t LaunchGather<float>(const CudaLaunchParams&, const ChunkMatrices&,
                                         cudaStream_t);
template cudaError_t LaunchGather<__half>(const CudaLaunchParams&, const ChunkMatrices&,
                                          cudaStream_t);
template cudaError_t LaunchGather<__nv_bfloat16>(const CudaLaunchParams&, const ChunkMatrices&,
                                                 cudaStream_t);
template cudaError_t LaunchScatter<float>(const CudaLaunchParams&, const ChunkMatrices&,
                                          cudaStream_t);
template cudaError_t LaunchScatter<__half>(const CudaLaunchParams&, const ChunkMatrices&,
                                           cudaStream_t);
template cudaError_t LaunchScatter<__nv_bfloat16>(const CudaLaunchParams&, const ChunkMatrices&,
                                                  cudaStream_t);

}  // namespace attnd::kernels::naive
