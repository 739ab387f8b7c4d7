// cuBLAS, loaded when the first naive row is prepared: an image that serves fused rows only does
// not carry it.
#pragma once

#include <cublas_api.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace attnd::kernels::naive {

// Row-major products of num_batches equally spaced matrices, FP32 sums, without TF32:
//   c[m][n] = a[m][k] b   with b as [n][k] (transposed) or [k][n].
// Strides in elements; type of a and b: `type`, of c: `c_type`.
struct BatchedProduct {
  cudaDataType_t type, c_type;
  int m, n, k;
  bool b_is_transposed;
  const void *a, *b;
  void* c;
  std::int64_t a_row, b_row, c_row;        // between rows
  std::int64_t a_batch, b_batch, c_batch;  // between matrices
  int num_batches;
};

// Null where cuBLAS can be used on the current device, else why not, in words for an operator.
// Loads the library and makes this device's handle at the first call. Thread-safe.
const char* CublasFault();

// After CublasFault() was null on this device. Thread-safe; calls of one device take turns.
cudaError_t Multiply(const BatchedProduct& product, cudaStream_t stream);

}  // namespace attnd::kernels::naive
