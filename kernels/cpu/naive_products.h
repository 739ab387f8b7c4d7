// What libattnd_naive.so gives: the two products of the naive row over OpenBLAS and oneDNN. They
// are 79 MB of libraries that only comparisons need, so that a server is installed with or without
// them; naive_gemm.cc loads the library where it is.
#pragma once

#include "kernels/cpu/naive_gemm.h"

namespace attnd::kernels {

struct NaiveProducts {
  bool (*run)(const GemmProblem& problem);  // as RunGemm
  void (*use_one_thread)();                 // as PrepareGemm
};

// The library's only symbol; another number when the structures change.
inline constexpr char kNaiveProductsSymbol[] = "attnd_naive_products_v1";
inline constexpr char kNaiveProductsLibrary[] = "libattnd_naive.so";

}  // namespace attnd::kernels

extern "C" __attribute__((visibility("default"))) const attnd::kernels::NaiveProducts*
// NOLINTNEXTLINE(readability-identifier-naming)
attnd_naive_products_v1();
