// Every compiled CUDA kernel. Rows name what the host needs to choose, prepare and launch one.
#pragma once

#include <span>

#include "kernels/attention_kernels.h"
#include "kernels/cuda/cuda_launch_params.h"
#include "kernels/naive/naive_plan.h"

namespace attnd::kernels {

// Tensors that a row reads or writes 16 bytes at a time: rows and addresses must be aligned to them
// and rows padded to them.
enum Wide : std::uint8_t { kWideQuery = 1, kWideKeys = 2, kWideOutput = 4 };

using NaiveLaunch = cudaError_t (*)(const CudaLaunchParams& params, const naive::NaivePlan& plan,
                                    const AttentionSequence* host, std::byte* scratch,
                                    cudaStream_t stream);

struct CudaKernelRow {
  const char* name;  // "sm80/prefill_bf16_d128"
  Operation operation;
  int first_cc, last_cc;
  std::uint32_t data_types;  // TypeBit mask; q, k and v alike
  int head_dim;              // bucket: serves head dimensions up to this
  std::uint32_t features;    // Feature bits
  std::uint8_t wide;         // Wide bits
  int block_rows;  // prefill, exact: query rows of a task; decode: query rows of a pass; else 0
  cudaError_t (*prepare)(cudaFuncAttributes* attributes);  // of the row's kernel; may be null
  CudaLaunch launch;                                       // null: naive, append, merge
  NaiveLaunch launch_naive;                                // naive only
};

std::span<const CudaKernelRow> CudaKernelTable();

}  // namespace attnd::kernels
