// Merge of partial attention states over disjoint KV ranges, on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace attnd::kernels::any {

// As MergeParams (attention_kernels.h), with device pointers. o and lse may be null where not
// wanted.
struct CudaMergeParams {
  const float* const* o_parts = nullptr;  // [num_parts], each FP32 [num_rows][head_dim]
  const float* const* lse_parts =
      nullptr;  // [num_parts], each [num_rows]; natural log, -inf: empty
  std::int32_t num_parts = 0;
  std::int64_t num_rows = 0;
  std::int32_t head_dim = 0;
  const float* sink_logits = nullptr;  // [num_rows] or null
  void* o = nullptr;                   // [num_rows][head_dim]
  float* lse = nullptr;                // [num_rows]
};

// Element: of o.
template <class Element>
cudaError_t LaunchMergeStates(const CudaMergeParams& params, cudaStream_t stream);

}  // namespace attnd::kernels::any
