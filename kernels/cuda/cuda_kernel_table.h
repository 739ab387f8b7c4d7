// Every compiled CUDA kernel. Rows name what the host needs to choose, prepare and launch one.
#pragma once

#include <span>

#include "kernels/attention_kernels.h"
#include "kernels/cuda/cuda_launch_params.h"

namespace attnd::kernels {

struct CudaKernelRow {
  const char* name;  // "sm80/prefill_bf16_d128"
  Operation operation;
  int first_cc, last_cc;
  DataType data_type, kv_data_type;
  int head_dim;            // bucket: serves head dimensions up to this
  std::uint32_t features;  // Feature bits
  int block_rows;          // prefill: query rows of a task; decode: query rows of a pass
  cudaError_t (*prepare)();
  CudaLaunch launch;
};

std::span<const CudaKernelRow> CudaKernelTable();

}  // namespace attnd::kernels
