// Merge of split states: o = sum(2^(M_i - M) O_i) / sum(2^(M_i - M) S_i) in ascending KV order.
//
// Warps      8 a CTA. Up to 8 splits in the batch: a warp a row (query token, head). More: all 8
//            warps a row, so that 128 splits cost four rounds of loads and not 128. Every warp finds
//            M from all states, then adds up a run of neighbouring splits, four dims a lane; runs
//            are added in order.
// Order      A sequence with up to 8 splits has one run, with more 8 runs, whatever the others in
//            the batch have: its bits are its own. This file is compiled without contraction.
// Roofline   reads splits x rows x (head_dim + 2) x 4 bytes, mostly from the L2 that the splits
//            have just written: 33 splits x 32 heads x 128 dims is 0.5 MB, less than the launch
//            costs.
#include "kernels/any/combine_splits.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/device/decode_rows.cuh"

namespace attnd::kernels::any {
namespace {

constexpr int kWarps = 8;
constexpr int kLaneDims = 4;
constexpr int kRoundDims = 32 * kLaneDims;
static_assert(kMaxHeadDim == 2 * kRoundDims);

// More splits than this are shared out over the warps of a CTA.
constexpr int kMaxWarpSplits = 8;

struct SharedMemory {
  float total[kWarps][kMaxHeadDim];
  float row_sum[kWarps];
};

// The largest row_max of all splits of a row; states of one row lie `rows` apart.
__device__ __forceinline__ float LargestRowMax(const float2* states, int num_splits, int rows,
                                               int lane) {
  float row_max = -INFINITY;
  for (int split = lane; split < num_splits; split += 32) {
    row_max = fmaxf(row_max, states[static_cast<std::int64_t>(split) * rows].x);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    row_max = fmaxf(row_max, __shfl_xor_sync(0xffffffffU, row_max, step));
  }
  return row_max;
}

template <class Element, int kWarpsPerRow>
__global__ void __launch_bounds__(kWarps * 32)
    CombineSplitsKernel(const __grid_constant__ CudaLaunchParams params) {
  __shared__ SharedMemory shared;
  const int sequence_index = blockIdx.x;
  const DecodeSequencePlan plan = params.decode_plans[sequence_index];
  const AttentionSequence sequence = params.attention.sequences[sequence_index];
  const int num_heads = params.attention.num_heads;
  const int head_dim = params.attention.head_dim;
  const int rows = sequence.query_length * num_heads;
  // Rows of this CTA, and the warp's place among those of its row.
  constexpr int kRowsPerCta = kWarps / kWarpsPerRow;
  const int warp = threadIdx.x / 32;
  const int row = blockIdx.y * kRowsPerCta + warp / kWarpsPerRow;
  const int part_index = warp % kWarpsPerRow;
  if (plan.num_splits <= 1 || blockIdx.y * kRowsPerCta >= rows) return;
  const bool exists = row < rows;
  const int lane = threadIdx.x % 32;
  const float2* states = params.partial_state + plan.first_partial + row;
  const int num_splits = exists ? plan.num_splits : 0;
  const float row_max = LargestRowMax(states, num_splits, rows, lane);

  const int run = num_splits <= kMaxWarpSplits ? num_splits : (num_splits + kWarps - 1) / kWarps;
  const int last = min((part_index + 1) * run, num_splits);
  for (int round = 0; round * kRoundDims < head_dim; ++round) {
    const int dim = round * kRoundDims + lane * kLaneDims;
    float row_sum = 0.0F;
    float total[kLaneDims] = {};
#pragma unroll 4
    for (int split = part_index * run; split < last; ++split) {
      const std::int64_t at = static_cast<std::int64_t>(split) * rows;
      const float2 state = states[at];
      const float* o = params.partial_o + (plan.first_partial + row + at) * head_dim + dim;
      float part[kLaneDims];
#pragma unroll
      for (int d = 0; d < kLaneDims; ++d) part[d] = dim + d < head_dim ? o[d] : 0.0F;
      // A split that saw no key adds nothing.
      const bool empty = state.x == -INFINITY && state.y == 0.0F;
      const float weight = empty ? 0.0F : ptx::Ex2(state.x - row_max);
      row_sum = fmaf(state.y, weight, row_sum);
#pragma unroll
      for (int d = 0; d < kLaneDims; ++d) total[d] = fmaf(part[d], weight, total[d]);
    }
#pragma unroll
    for (int d = 0; d < kLaneDims; ++d) shared.total[warp][dim + d] = total[d];
    if (lane == 0) shared.row_sum[warp] = row_sum;
  }
  __syncthreads();
  if (!exists) return;

  const int first_warp = warp - part_index;
  float row_sum = 0.0F;
#pragma unroll
  for (int w = 0; w < kWarpsPerRow; ++w) row_sum += shared.row_sum[first_warp + w];
  const int token = row / num_heads;
  const int head = row % num_heads;
  const device::RowResult result =
      device::FinishRow(row_max, row_sum, device::SinkLog2(params, sequence, head));
  bool finite = true;
  for (int dim = part_index * 32 + lane; dim < head_dim; dim += kWarpsPerRow * 32) {
    float total[1] = {0.0F};
#pragma unroll
    for (int w = 0; w < kWarpsPerRow; ++w) total[0] += shared.total[first_warp + w][dim];
    finite &= device::StoreRow<Element>(params, sequence, token, head, dim, total, result.factor);
  }
  if (!finite) device::FlagNonfinite(params, sequence_index, head);
  if (part_index == 0 && lane == 0 && sequence.lse != nullptr) {
    sequence.lse[static_cast<std::int64_t>(token) * num_heads + head] = result.lse;
  }
}

template <class Element, int kWarpsPerRow>
cudaError_t Launch(const CudaLaunchParams& params, cudaStream_t stream) {
  constexpr int kRowsPerCta = kWarps / kWarpsPerRow;
  const int rows = params.max_query_rows * params.attention.num_kv_heads;
  const dim3 grid(params.attention.num_sequences, (rows + kRowsPerCta - 1) / kRowsPerCta);
  CombineSplitsKernel<Element, kWarpsPerRow><<<grid, kWarps * 32, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

template <class Element>
cudaError_t LaunchCombineSplits(const CudaLaunchParams& params, cudaStream_t stream) {
  return params.max_splits > kMaxWarpSplits ? Launch<Element, kWarps>(params, stream)
                                            : Launch<Element, 1>(params, stream);
}

template cudaError_t LaunchCombineSplits<float>(const CudaLaunchParams&, cudaStream_t);
template cudaError_t LaunchCombineSplits<__half>(const CudaLaunchParams&, cudaStream_t);
template cudaError_t LaunchCombineSplits<__nv_bfloat16>(const CudaLaunchParams&, cudaStream_t);

}  // namespace attnd::kernels::any
