// Upkeep of the paged cache on the device: new K and V rows into pages, rotated if asked, and the
// rotation of queries.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/attention_params.h"
#include "kernels/cuda/cuda_launch_params.h"

namespace attnd::kernels::any {

// Device pointers, alive until the stream has passed the launch.
struct CudaAppendParams {
  const AppendSequence* sequences = nullptr;
  std::int32_t num_sequences = 0;
  std::int32_t max_tokens = 0;  // of one sequence from first_token on, at most; up to 65535
  PagePool pages;
  std::byte* pool = nullptr;  // pages.base, writable
  std::int32_t num_kv_heads = 1, head_dim = 1, padded_head_dim = 32;
  std::int32_t first_token = 0;        // tokens of every sequence before it are left out
  CudaLaunchStatus* status = nullptr;  // rows of a bad page are not written
};

// Element: of the rows and of the cache. Rows are padded with zeros from head_dim to
// padded_head_dim.
template <class Element>
cudaError_t LaunchAppend(const CudaAppendParams& params, cudaStream_t stream);

// `rotations` is device memory, as everything that it points to; num_rows: tokens of all of them.
template <class Element>
cudaError_t LaunchRotateQueries(const QueryRotation* rotations, std::int32_t num_rotations,
                                std::int32_t num_rows, std::int32_t num_heads,
                                std::int32_t head_dim, cudaStream_t stream);

}  // namespace attnd::kernels::any
