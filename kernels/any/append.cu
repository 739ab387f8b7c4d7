// Append to the paged cache, with optional rotary embedding of K.
//
// Algorithm  One CTA a token. The angles of its position are computed once, in double (a position
//            of 10^6 times a frequency near 1 has no correct bit left in an FP32 sine), and used
//            by all heads. Every element is then read, rotated in FP32 and written where its page
//            is.
// Warps      4; a thread owns an element, or a pair of elements where they are rotated.
// Roofline   reads and writes 2 * num_kv_heads * head_dim elements a token: 8 KiB for 8 heads of
//            128 in 16 bits. Bound by the launch in decode, by DRAM in long prompts.
#include "kernels/any/append.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace attnd::kernels::any {
namespace {

constexpr int kThreads = 128;

struct Rotation {
  float cosine[kMaxHeadDim / 2];
  float sine[kMaxHeadDim / 2];
};

__device__ __forceinline__ float ToFloat(float value) { return value; }
__device__ __forceinline__ float ToFloat(__half value) { return __half2float(value); }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }

// The rotation of every pair at `position`, by the whole CTA.
__device__ __forceinline__ void ComputeRotation(Rotation& rotation, const RopeParams& rope,
                                                std::int64_t position) {
  for (int pair = threadIdx.x; pair < rope.rotary_dim / 2; pair += kThreads) {
    const double frequency =
        rope.inverse_frequencies != nullptr
            ? static_cast<double>(rope.inverse_frequencies[pair])
            : pow(rope.theta, -2.0 * pair / static_cast<double>(rope.rotary_dim));
    double sine = 0;
    double cosine = 1;
    sincos(static_cast<double>(position) * rope.position_scale * frequency, &sine, &cosine);
    rotation.sine[pair] = static_cast<float>(sine * rope.amplitude);
    rotation.cosine[pair] = static_cast<float>(cosine * rope.amplitude);
  }
}

// The element `dim` of a row after rotation.
template <class Element>
__device__ __forceinline__ float Rotated(const Element* row, int dim, const RopeParams& rope,
                                         const Rotation& rotation) {
  const float value = ToFloat(row[dim]);
  if (!rope.enabled || dim >= rope.rotary_dim) return value;
  const int half = rope.rotary_dim / 2;
  const int pair = rope.interleaved ? dim / 2 : dim % half;
  const bool second = rope.interleaved ? dim % 2 != 0 : dim >= half;
  const int partner = rope.interleaved ? dim ^ 1 : (second ? dim - half : dim + half);
  const float other = ToFloat(row[partner]);
  return second ? fmaf(other, rotation.sine[pair], value * rotation.cosine[pair])
                : fmaf(-other, rotation.sine[pair], value * rotation.cosine[pair]);
}

template <class Element>
__global__ void __launch_bounds__(kThreads)
    AppendKernel(const __grid_constant__ CudaAppendParams params) {
  __shared__ Rotation rotation;
  const AppendSequence& sequence = params.sequences[blockIdx.x];
  const int token = params.first_token + blockIdx.y;
  if (token >= sequence.num_tokens) return;
  const RopeParams rope = sequence.rope;
  if (rope.enabled) ComputeRotation(rotation, rope, sequence.first_position + token);
  __syncthreads();

  const std::int64_t at = sequence.first_token + token;
  const std::uint32_t entry = sequence.page_table[at >> params.pages.page_shift];
  if (entry >= params.pages.end_entry) {
    if (threadIdx.x == 0) {
      atomicOr(&params.status->faults, static_cast<std::uint32_t>(kCudaPageOutOfPool));
    }
    return;
  }
  const std::int64_t page = entry * static_cast<std::int64_t>(kPageUnitBytes);
  const std::int64_t row_in_page = at & ((std::int64_t{1} << params.pages.page_shift) - 1);
  const int row_elements = params.padded_head_dim;
  const Element zero = static_cast<Element>(0.0F);
  for (int i = threadIdx.x; i < params.num_kv_heads * row_elements; i += kThreads) {
    const int head = i / row_elements;
    const int dim = i % row_elements;
    const std::int64_t source =
        (static_cast<std::int64_t>(token) * params.num_kv_heads + head) * params.head_dim;
    const Element* k = static_cast<const Element*>(sequence.k) + source;
    const Element* v = static_cast<const Element*>(sequence.v) + source;
    std::byte* row = params.pool + page + head * params.pages.head_block_bytes +
                     row_in_page * params.pages.row_bytes;
    const bool exists = dim < params.head_dim;
    // Without a rotation the bits are kept, a NaN's payload included.
    const bool rotates = rope.enabled && dim < rope.rotary_dim;
    reinterpret_cast<Element*>(row)[dim] =
        !exists   ? zero
        : rotates ? static_cast<Element>(Rotated(k, dim, rope, rotation))
                  : k[dim];
    reinterpret_cast<Element*>(row + params.pages.v_offset_bytes)[dim] = exists ? v[dim] : zero;
  }
}

template <class Element>
__global__ void __launch_bounds__(kThreads)
    RotateQueriesKernel(const QueryRotation* rotations, int num_rotations, int num_heads,
                        int head_dim) {
  __shared__ Rotation rotation;
  // The row's sequence: the last one that begins there or before.
  const int row_in_batch = static_cast<int>(blockIdx.x);
  int first_candidate = 0;
  int last_candidate = num_rotations - 1;
  while (first_candidate < last_candidate) {
    const int middle = (first_candidate + last_candidate + 1) / 2;
    if (rotations[middle].first_row <= row_in_batch) {
      first_candidate = middle;
    } else {
      last_candidate = middle - 1;
    }
  }
  const QueryRotation& sequence = rotations[first_candidate];
  const int row_in_sequence = row_in_batch - sequence.first_row;
  const RopeParams rope = sequence.rope;
  if (!rope.enabled || row_in_sequence >= sequence.num_tokens) return;
  ComputeRotation(rotation, rope, sequence.first_position + row_in_sequence);
  __syncthreads();
  const int half = rope.rotary_dim / 2;
  Element* token = static_cast<Element*>(sequence.q) +
                   static_cast<std::int64_t>(row_in_sequence) * num_heads * head_dim;
  for (int i = threadIdx.x; i < num_heads * half; i += kThreads) {
    Element* row = token + static_cast<std::int64_t>(i / half) * head_dim;
    const int pair = i % half;
    const int first = rope.interleaved ? 2 * pair : pair;
    const int second = rope.interleaved ? first + 1 : first + half;
    // Both before either is overwritten.
    const float rotated_first = Rotated(row, first, rope, rotation);
    const float rotated_second = Rotated(row, second, rope, rotation);
    row[first] = static_cast<Element>(rotated_first);
    row[second] = static_cast<Element>(rotated_second);
  }
}

}  // namespace

template <class Element>
cudaError_t LaunchAppend(const CudaAppendParams& params, cudaStream_t stream) {
  if (params.num_sequences == 0 || params.max_tokens == 0) return cudaSuccess;
  const dim3 grid(params.num_sequences, params.max_tokens);
  AppendKernel<Element><<<grid, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

template <class Element>
cudaError_t LaunchRotateQueries(const QueryRotation* rotations, std::int32_t num_rotations,
                                std::int32_t num_rows, std::int32_t num_heads,
                                std::int32_t head_dim, cudaStream_t stream) {
  if (num_rows == 0) return cudaSuccess;
  RotateQueriesKernel<Element>
      <<<num_rows, kThreads, 0, stream>>>(rotations, num_rotations, num_heads, head_dim);
  return cudaGetLastError();
}

template cudaError_t LaunchAppend<float>(const CudaAppendParams&, cudaStream_t);
template cudaError_t LaunchAppend<__half>(const CudaAppendParams&, cudaStream_t);
template cudaError_t LaunchAppend<__nv_bfloat16>(const CudaAppendParams&, cudaStream_t);
template cudaError_t LaunchRotateQueries<float>(const QueryRotation*, std::int32_t, std::int32_t,
                                                std::int32_t, std::int32_t, cudaStream_t);
template cudaError_t LaunchRotateQueries<__half>(const QueryRotation*, std::int32_t, std::int32_t,
                                                 std::int32_t, std::int32_t, cudaStream_t);
template cudaError_t LaunchRotateQueries<__nv_bfloat16>(const QueryRotation*, std::int32_t,
                                                        std::int32_t, std::int32_t, std::int32_t,
                                                        cudaStream_t);

}  // namespace attnd::kernels::any
