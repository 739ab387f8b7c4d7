#include "kernels/naive/naive.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/naive/cublas_library.h"
#include "kernels/naive/naive_kernels.h"

namespace attnd::kernels::naive {
namespace {

template <class Element>
constexpr cudaDataType_t kCudaType = CUDA_R_32F;
template <>
constexpr cudaDataType_t kCudaType<__half> = CUDA_R_16F;
template <>
constexpr cudaDataType_t kCudaType<__nv_bfloat16> = CUDA_R_16BF;

// K or V of a chunk as the products read them.
struct Operand {
  const void* data;
  std::int64_t row, batch;
};

template <class Element>
cudaError_t MultiplyScores(const CudaLaunchParams& params, const ChunkMatrices& at,
                           const Operand& keys, cudaStream_t stream) {
  BatchedProduct product{};
  product.type = kCudaType<Element>;
  product.c_type = CUDA_R_32F;
  product.m = params.group * at.chunk.query_rows;
  product.n = at.chunk.keys;
  product.k = params.attention.head_dim;
  product.b_is_transposed = true;
  product.a = at.q;
  product.a_row = at.width;
  product.a_batch = std::int64_t{product.m} * at.width;
  product.b = keys.data;
  product.b_row = keys.row;
  product.b_batch = keys.batch;
  product.c = at.s;
  product.c_row = at.chunk.pitch;
  product.c_batch = std::int64_t{product.m} * at.chunk.pitch;
  product.num_batches = at.chunk.num_sequences * params.attention.num_kv_heads;
  return Multiply(product, stream);
}

template <class Element>
cudaError_t MultiplyValues(const CudaLaunchParams& params, const ChunkMatrices& at,
                           const Operand& values, cudaStream_t stream) {
  BatchedProduct product{};
  product.type = kCudaType<Element>;
  product.c_type = params.attention.partial ? CUDA_R_32F : kCudaType<Element>;
  product.m = params.group * at.chunk.query_rows;
  product.n = params.attention.head_dim;
  product.k = at.chunk.keys;
  product.b_is_transposed = false;
  product.a = at.p;
  product.a_row = at.chunk.pitch;
  product.a_batch = std::int64_t{product.m} * at.chunk.pitch;
  product.b = values.data;
  product.b_row = values.row;
  product.b_batch = values.batch;
  product.c = at.o;
  product.c_row = at.width;
  product.c_batch = std::int64_t{product.m} * at.width;
  product.num_batches = at.chunk.num_sequences * params.attention.num_kv_heads;
  return Multiply(product, stream);
}

}  // namespace

template <class Element>
cudaError_t LaunchNaive(const CudaLaunchParams& params, const NaivePlan& plan,
                        const AttentionSequence* host, std::byte* scratch, cudaStream_t stream) {
  for (const NaiveChunk& chunk : plan.chunks) {
    const NaiveScratch lay = LayOut(params.attention, plan, chunk);
    ChunkMatrices at;
    at.chunk = chunk;
    at.width = plan.width;
    at.q = scratch + lay.q;
    at.k = scratch + lay.k;
    at.v = scratch + lay.v;
    at.s = reinterpret_cast<float*>(scratch + lay.s);
    at.p = scratch + lay.p;
    at.o = scratch + lay.o;
    Operand keys{at.k, at.width, std::int64_t{chunk.keys} * at.width};
    Operand values{at.v, keys.row, keys.batch};
    if (chunk.keys_in_place) {
      const KvView& kv = host[chunk.first_sequence].kv;
      keys = {kv.k, kv.k_token_stride, kv.k_head_stride};
      values = {kv.v, kv.v_token_stride, kv.v_head_stride};
    }
    cudaError_t error = LaunchGather<Element>(params, at, stream);
    if (chunk.keys > 0) {
      if (error == cudaSuccess) error = MultiplyScores<Element>(params, at, keys, stream);
      if (error == cudaSuccess) error = LaunchSoftmax<Element>(params, at, stream);
      if (error == cudaSuccess) error = MultiplyValues<Element>(params, at, values, stream);
    } else if (error == cudaSuccess) {
      // No key at all: the softmax writes lse, and o is what the gather left: zeros.
      error = LaunchSoftmax<Element>(params, at, stream);
    }
    if (error == cudaSuccess) error = LaunchScatter<Element>(params, at, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

template cudaError_t LaunchNaive<float>(const CudaLaunchParams&, const NaivePlan&,
                                        const AttentionSequence*, std::byte*, cudaStream_t);
template cudaError_t LaunchNaive<__half>(const CudaLaunchParams&, const NaivePlan&,
                                         const AttentionSequence*, std::byte*, cudaStream_t);
template cudaError_t LaunchNaive<__nv_bfloat16>(const CudaLaunchParams&, const NaivePlan&,
                                                const AttentionSequence*, std::byte*, cudaStream_t);

}  // namespace attnd::kernels::naive
