// Re-layout of rows: what a kernel that reads 16 bytes at a time cannot take as it is (rows or base
// addresses that are not 16-byte aligned, rows that end inside 16 bytes) is copied into padded rows
// first, and its output back.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace attnd::kernels::any {

// tokens x heads rows. Strides and sizes in bytes, all even.
struct ConvertJob {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::int64_t from_token_stride = 0, from_head_stride = 0;
  std::int64_t to_token_stride = 0, to_head_stride = 0;
  std::int64_t tokens = 0;
  std::int32_t heads = 0;
  std::int32_t row_bytes = 0;     // copied
  std::int32_t padded_bytes = 0;  // written; what is past row_bytes becomes zero
};

// jobs: device memory, num_jobs of them.
cudaError_t LaunchConvert(const ConvertJob* jobs, int num_jobs, cudaStream_t stream);

}  // namespace attnd::kernels::any
