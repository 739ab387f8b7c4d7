// The two library products of the naive row, each on the calling thread only. The library is loaded
// by the first call of any function here.
#pragma once

#include <cstdint>

namespace attnd::kernels {

// c[m][n] = a[m][k] * b, row-major, leading dimensions in elements; c is FP32. transpose_b: b is
// [n][k] (keys), else [k][n] (values). `bf16`: a and b are BF16, else FP32. k > 0.
struct GemmProblem {
  std::int64_t m, n, k;
  const void* a;
  std::int64_t lda;
  const void* b;
  std::int64_t ldb;
  bool transpose_b;
  float* c;
  std::int64_t ldc;
  bool bf16;
};

// Why there are no products: libattnd_naive.so, or what it needs, is not installed. Null where
// there are.
const char* GemmFault();

// False: the library failed (out of memory, an unsupported shape), or there is a GemmFault().
bool RunGemm(const GemmProblem& problem);

// Whether RunGemm takes BF16 on this machine (oneDNN needs AVX-512).
bool Bf16GemmSupported();

// Sets OpenBLAS to one thread a call; call before RunGemm from several threads.
void PrepareGemm();

}  // namespace attnd::kernels
