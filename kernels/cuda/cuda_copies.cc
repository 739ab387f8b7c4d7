// Which tensors of a launch need a padded copy (any/convert).
#include <algorithm>

#include "kernels/cuda/cuda_plan.h"

namespace attnd::kernels {
namespace {

constexpr std::int64_t kWideBytes = 16;

bool Aligned(const void* base, std::int64_t token_stride, std::int64_t head_stride, int head_dim,
             int element_bytes) {
  return reinterpret_cast<std::uintptr_t>(base) % kWideBytes == 0 &&
         token_stride * element_bytes % kWideBytes == 0 &&
         head_stride * element_bytes % kWideBytes == 0 &&
         std::int64_t{head_dim} * element_bytes % kWideBytes == 0;
}

}  // namespace

void PlanCopies(const CudaKernelRow& row, const AttentionParams& params, CudaPlanDetail& detail) {
  const int element = ElementBytes(params.data_type);
  const std::int64_t row_bytes = std::int64_t{params.head_dim} * element;
  detail.padded_row_bytes =
      static_cast<std::int32_t>((row_bytes + kWideBytes - 1) / kWideBytes * kWideBytes);
  for (std::int32_t i = 0; i < params.num_sequences; ++i) {
    const AttentionSequence& sequence = params.sequences[i];
    const KvView& kv = sequence.kv;
    if (sequence.query_length == 0) continue;
    if ((row.wide & kWideQuery) != 0 &&
        !Aligned(sequence.q, sequence.q_token_stride, sequence.q_head_stride, params.head_dim,
                 element)) {
      detail.inputs.push_back({i, PlannedCopy::kQuery, 0});
    }
    // Pages are padded already.
    if ((row.wide & kWideKeys) != 0 && kv.page_table == nullptr && sequence.kv_length > 0) {
      if (!Aligned(kv.k, kv.k_token_stride, kv.k_head_stride, params.head_dim, element)) {
        detail.inputs.push_back({i, PlannedCopy::kKey, 0});
      }
      if (!Aligned(kv.v, kv.v_token_stride, kv.v_head_stride, params.head_dim, element)) {
        detail.inputs.push_back({i, PlannedCopy::kValue, 0});
      }
    }
    if ((row.wide & kWideOutput) != 0 && !params.partial &&
        !Aligned(sequence.o, sequence.o_token_stride, sequence.o_head_stride, params.head_dim,
                 element)) {
      detail.outputs.push_back({i, PlannedCopy::kOutput, 0});
    }
  }
}

std::int64_t CopyBytes(const CudaPlanDetail& detail, const PlannedCopy& copy) {
  const AttentionSequence& sequence = detail.sequences[static_cast<std::size_t>(copy.sequence)];
  const bool keys = copy.tensor == PlannedCopy::kKey || copy.tensor == PlannedCopy::kValue;
  const std::int64_t rows = keys ? sequence.kv_length * detail.params.num_kv_heads
                                 : std::int64_t{sequence.query_length} * detail.params.num_heads;
  return rows * detail.padded_row_bytes;
}

}  // namespace attnd::kernels
