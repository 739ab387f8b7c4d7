#include "kernels/cpu/naive_gemm.h"

#include <dlfcn.h>

#include <string>

#include "kernels/attention_kernels.h"
#include "kernels/cpu/naive_products.h"

namespace attnd::kernels {
namespace {

struct Library {
  const NaiveProducts* products = nullptr;
  std::string fault;  // empty: loaded
};

Library Load() {
  // By its name alone: the loader looks where the program's own libraries lie.
  void* const handle = dlopen(kNaiveProductsLibrary, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return {nullptr, std::string("naive needs ") + kNaiveProductsLibrary +
                         ", which is not installed or lacks a library: " + dlerror()};
  }
  const auto get =
      reinterpret_cast<decltype(&attnd_naive_products_v1)>(dlsym(handle, kNaiveProductsSymbol));
  if (get == nullptr) {
    return {nullptr, std::string(kNaiveProductsLibrary) + " is of another version of attnd"};
  }
  return {get(), ""};
}

// Never unloaded: oneDNN and OpenMP keep threads and per-thread data.
const Library& TheLibrary() {
  static const auto* library = new Library(Load());
  return *library;
}

}  // namespace

const char* GemmFault() {
  const Library& library = TheLibrary();
  return library.products == nullptr ? library.fault.c_str() : nullptr;
}

bool RunGemm(const GemmProblem& problem) {
  const NaiveProducts* products = TheLibrary().products;
  return products != nullptr && products->run(problem);
}

bool Bf16GemmSupported() { return CpuTargetSupported(CpuTarget::kAvx512); }

void PrepareGemm() {
  if (const NaiveProducts* products = TheLibrary().products) products->use_one_thread();
}

}  // namespace attnd::kernels
