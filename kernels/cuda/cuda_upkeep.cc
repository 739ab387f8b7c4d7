// Upkeep of the cache on a stream: append, rotation of queries, merge of partial states.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "kernels/any/append.h"
#include "kernels/any/merge_states.h"
#include "kernels/cuda_kernels.h"

namespace attnd::kernels {
namespace {

// Tokens of a sequence that one launch takes: gridDim.y.
constexpr std::int32_t kMaxAppendTokens = 65535;

LaunchStatus StatusOf(cudaError_t error) {
  if (error == cudaErrorInvalidValue) return LaunchStatus::kUnsupported;
  return error == cudaSuccess ? LaunchStatus::kOk : LaunchStatus::kDeviceFault;
}

// function(element tag) for the element type; other types are not stored by these kernels.
template <class Function>
LaunchStatus ForType(DataType type, Function function) {
  switch (type) {
    case DataType::kFp32:
      return StatusOf(function(float{}));
    case DataType::kFp16:
      return StatusOf(function(__half{}));
    case DataType::kBf16:
      return StatusOf(function(__nv_bfloat16{}));
    default:
      return LaunchStatus::kUnsupported;
  }
}

}  // namespace

LaunchStatus LaunchCudaAppend(const AppendParams& params, const AppendSequence* device_sequences,
                              CudaLaunchStatus* status, CudaStream stream) {
  const PageLayout& layout = params.page_layout;
  AttentionParams paged;
  paged.page_layout = layout;
  paged.pool = params.pool;
  paged.pool_bytes = params.pool_bytes;
  any::CudaAppendParams append;
  append.sequences = device_sequences;
  append.num_sequences = params.num_sequences;
  append.pages = MakePagePool(paged);
  append.pool = params.pool;
  append.num_kv_heads = layout.num_kv_heads;
  append.head_dim = layout.head_dim;
  append.padded_head_dim = layout.padded_head_dim;
  append.status = status;
  std::int32_t longest = 0;
  for (std::int32_t i = 0; i < params.num_sequences; ++i) {
    longest = std::max(longest, params.sequences[i].num_tokens);
  }
  LaunchStatus result = LaunchStatus::kOk;
  for (std::int32_t first = 0; first < longest && result == LaunchStatus::kOk;
       first += kMaxAppendTokens) {
    append.first_token = first;
    append.max_tokens = std::min(longest - first, kMaxAppendTokens);
    result = ForType(layout.data_type, [&](auto element) {
      return any::LaunchAppend<decltype(element)>(append, stream);
    });
  }
  return result;
}

LaunchStatus LaunchCudaRotateQueries(std::span<const QueryRotation> rotations,
                                     const QueryRotation* device_rotations, DataType type,
                                     int num_heads, int head_dim, CudaStream stream) {
  if (rotations.empty()) return LaunchStatus::kOk;
  const QueryRotation& last = rotations.back();
  return ForType(type, [&](auto element) {
    return any::LaunchRotateQueries<decltype(element)>(
        device_rotations, static_cast<std::int32_t>(rotations.size()),
        last.first_row + last.num_tokens, num_heads, head_dim, stream);
  });
}

LaunchStatus LaunchCudaMergeStates(const MergeParams& params, CudaStream stream) {
  const any::CudaMergeParams merge{params.o_parts,  params.lse_parts, params.num_parts,
                                   params.num_rows, params.head_dim,  params.sink_logits,
                                   params.o,        params.lse};
  return ForType(params.type, [&](auto element) {
    return any::LaunchMergeStates<decltype(element)>(merge, stream);
  });
}

}  // namespace attnd::kernels
