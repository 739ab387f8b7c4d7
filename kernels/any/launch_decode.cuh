// The launch of a decode row: one CTA a (task, KV head, pass over Tile::kRows query rows), then the
// merge of the splits.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/any/combine_splits.h"
#include "kernels/cuda/cuda_launch_params.h"

namespace attnd::kernels::any {

// Tile has kRows, kThreads and SharedMemory. Asynchronous; returns errors of the launches only.
template <class Element, class Tile>
cudaError_t LaunchDecode(void (*kernel)(CudaLaunchParams), const CudaLaunchParams& params,
                         cudaStream_t stream) {
  const int passes = (params.max_query_rows + Tile::kRows - 1) / Tile::kRows;
  const unsigned ctas = static_cast<unsigned>(params.num_tasks) *
                        static_cast<unsigned>(params.attention.num_kv_heads) *
                        static_cast<unsigned>(passes);
  if (ctas == 0) return cudaSuccess;
  kernel<<<ctas, Tile::kThreads, sizeof(typename Tile::SharedMemory), stream>>>(params);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess || params.max_splits <= 1) return error;
  return LaunchCombineSplits<Element>(params, stream);
}

}  // namespace attnd::kernels::any
