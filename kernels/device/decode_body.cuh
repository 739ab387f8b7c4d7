// The decode kernel of the tensor-core folders: everything but how slices of K and V arrive.
//
// One CTA owns (sequence, KV head, split, 16 query rows). All query tokens and all heads of the
// group are packed into the rows of one m16 fragment, so K and V are read once for them. Every warp
// streams its own slices of 16 keys and keeps its own (row_max, row_sum, accumulator): no barrier
// until the end, where the warps' states merge in shared memory.
//
// Tile      kHeadDim, kWarps, kRows, kSliceKeys, kStepKeys, kQueryInRegisters; SharedMemory with
//           members merge and source; Merge with accumulator, row_max and row_sum of every warp.
// Pipeline  one a warp:
//             QueryRows()      where 16 query rows may lie until they are taken
//             CopyQuery(...)   starts the copy of one 16-byte piece of them (or zeros)
//             Start(first_key, slices, ...)   shared.source is complete: first slices
//             WaitForQuery()   they have landed for all lanes
//             AcquireKey(slice), AcquireValue(slice)   they have landed; later copies are started
//             Key(slice), Value(slice)   its shared memory addresses
//             Release(slice)   all lanes are done with it
//             Finish()         nothing is in flight
#pragma once

#include <cstdint>

#include "kernels/device/attention_tile.cuh"
#include "kernels/device/decode_rows.cuh"
#include "kernels/device/kv_source.cuh"
#include "kernels/device/online_softmax.cuh"
#include "kernels/device/prefill_rows.cuh"

namespace attnd::kernels::device {

// This lane's two rows of a score fragment (rows group and group + 8), and the keys they see.
struct LaneRows {
  DecodeRows rows;
  int first_row;
  int lower[2], upper[2];
  int all_from, all_to;  // keys that every row of the warp sees

  __device__ __forceinline__ LaneRows(const DecodeRows& rows_, const VisibleKeys& visible,
                                      int first_row_, int lane)
      : rows(rows_), first_row(first_row_) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int token = rows.Token(Row(r, lane));
      lower[r] = visible.Lower(token);
      upper[r] = visible.Upper(token);
    }
    const int last = rows.num_rows - 1;
    all_from = visible.Lower(rows.Token(min(first_row + 15, last)));
    all_to = visible.Upper(rows.Token(min(first_row, last)));
  }
  __device__ __forceinline__ bool AllSee(int first_key) const {
    return first_key >= all_from && first_key + 16 <= all_to;
  }
  __device__ __forceinline__ int Row(int r, int lane) const {
    return min(first_row + 8 * r + (lane >> 2), rows.num_rows - 1);
  }
};

// Scores of 16 keys to logits, then the mask. options: the sequence in device memory, read here
// since registers are short; null where it has none that change scores.
template <int kHeadDim>
__device__ __forceinline__ void FinishScores(float (&s)[1][2][4], const AttentionSequence* options,
                                             const LaneRows& rows, int first_key, int lane) {
  if (options != nullptr) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = rows.Row(r, lane);
      const ScoreOptions change(*options, rows.rows.Head(row), options->softmax_scale);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) {
          const int key = first_key + 8 * n + 2 * (lane & 3) + e % 2;
          s[0][n][e] = change.Logit(s[0][n][e], rows.rows.Token(row), key);
        }
      }
    }
  }
  // At d 256 the two registers that this takes would spill on sm_75.
  if (kHeadDim <= 128 && rows.AllSee(first_key)) return;
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
template <int kHeadDim, class Merge>
__device__ __forceinline__ void PublishState(Merge& merge, OnlineSoftmax<1>& softmax,
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

// Starts the copy of 16 packed query rows into the pipeline's swizzled tile, zeros in rows that do
// not exist.
template <class Element, int kHeadDim, class Pipeline>
__device__ __forceinline__ void LoadPackedQuery(Pipeline& pipeline,
                                                const AttentionSequence& sequence,
                                                const DecodeRows& rows, int first_row,
                                                int valid_chunks, int lane) {
  using Layout = TileLayout<kHeadDim>;
#pragma unroll 2
  for (int i = lane; i < 16 * Layout::kChunks; i += 32) {
    const int row = first_row + i / Layout::kChunks;
    const int chunk = i % Layout::kChunks;
    const bool exists = row < rows.num_rows && chunk < valid_chunks;
    const auto* q = static_cast<const Element*>(sequence.q);
    if (exists) {
      q += rows.Token(row) * sequence.q_token_stride + rows.Head(row) * sequence.q_head_stride +
           chunk * kChunkElements;
    }
    pipeline.CopyQuery(Layout::Offset(i / Layout::kChunks, chunk), q, exists);
  }
}

template <class Arch, class Element, class Tile, class Pipeline>
__device__ __forceinline__ void DecodeBody(const CudaLaunchParams& params,
                                           typename Tile::SharedMemory& shared) {
  constexpr int kHeadDim = Tile::kHeadDim;
  const int warp = Uniform(threadIdx.x / 32);
  const int lane = threadIdx.x % 32;
  // Passes over the same keys are neighbours, so that all but the first find them in the L2.
  const int passes = (params.max_query_rows + Tile::kRows - 1) / Tile::kRows;
  const int unit = blockIdx.x / passes;
  const int first_row = blockIdx.x % passes * Tile::kRows;
  const int kv_head = unit % params.attention.num_kv_heads;
  const DecodeTask task = params.decode_tasks[unit / params.attention.num_kv_heads];
  const AttentionSequence sequence = params.attention.sequences[task.sequence];
  const DecodeRows rows(params, sequence, kv_head);
  if (first_row >= rows.num_rows) return;
  const int valid_chunks = (params.attention.head_dim + kChunkElements - 1) / kChunkElements;
  const VisibleKeys visible(sequence);
  const LaneRows lane_rows(rows, visible, first_row, lane);
  const bool has_options = sequence.logits_soft_cap > 0.0F || sequence.bias != nullptr ||
                           sequence.alibi_slopes != nullptr;
  const AttentionSequence* const options =
      has_options ? params.attention.sequences + task.sequence : nullptr;
  // Logits are in natural units, and the scale is part of them.
  const ScoreFactor factor(has_options ? 1.0F : sequence.softmax_scale);
  if (threadIdx.x == 0) shared.source.Set(params, sequence, kv_head, sizeof(Element));

  Pipeline pipeline(shared, warp, lane);
  LoadPackedQuery<Element, kHeadDim>(pipeline, sequence, rows, first_row, valid_chunks, lane);
  __syncthreads();  // shared.source is complete
  const int warp_key = task.first_key + warp * Tile::kSliceKeys;
  const int end_key = min(task.last_key, shared.source.kv_length);
  const int slices = max((end_key - warp_key + Tile::kStepKeys - 1) / Tile::kStepKeys, 0);
  pipeline.Start(warp_key, slices, valid_chunks);
  pipeline.WaitForQuery();
  const QueryOperands<Element, kHeadDim, 1, Tile::kQueryInRegisters> query(
      pipeline.QueryRows(), factor.query_factor, lane);

  OnlineSoftmax<1> softmax;
  float accumulator[1][kHeadDim / 8][4] = {};
  for (int slice = 0; slice < slices; ++slice) {
    pipeline.AcquireKey(slice);
    float s[1][2][4];
    ScoreTile<Arch, Element, kHeadDim>(s, pipeline.Key(slice), lane, query);
    FinishScores<kHeadDim>(s, options, lane_rows, warp_key + slice * Tile::kStepKeys, lane);
    pipeline.AcquireValue(slice);
    softmax.Step(s, accumulator, factor.c);
    AccumulateTile<Arch, Element, kHeadDim>(accumulator, s, pipeline.Value(slice), lane);
    pipeline.Release(slice);
  }

  const DecodeSequencePlan plan = params.decode_plans[task.sequence];
  pipeline.Finish();
  __syncthreads();  // the slices' place becomes the merge area
  PublishState<kHeadDim>(shared.merge, softmax, accumulator, warp, lane);
  __syncthreads();
  StoreDecodeRows<Element, Tile>(params, shared.merge, params.attention.sequences[task.sequence],
                                 rows, task, plan, first_row, warp, lane);
}

}  // namespace attnd::kernels::device
