#include "kernels/naive/cublas_library.h"

#include <dlfcn.h>

#include <array>
#include <mutex>
#include <string>

namespace attnd::kernels::naive {
namespace {

constexpr int kMaxDevices = 64;

struct Functions {
  decltype(&cublasCreate_v2) create = nullptr;
  decltype(&cublasSetStream_v2) set_stream = nullptr;
  // Written out: C++ sees an overloaded name.
  cublasStatus_t (*gemm)(cublasHandle_t handle, cublasOperation_t a_operation,
                         cublasOperation_t b_operation, int m, int n, int k, const void* alpha,
                         const void* a, cudaDataType_t a_type, int a_column, long long a_batch,
                         const void* b, cudaDataType_t b_type, int b_column, long long b_batch,
                         const void* beta, void* c, cudaDataType_t c_type, int c_column,
                         long long c_batch, int num_batches, cublasComputeType_t compute,
                         cublasGemmAlgo_t algorithm) = nullptr;
};

struct Library {
  std::mutex mutex;
  bool tried = false;
  Functions functions;
  std::string fault;  // empty: loaded
  std::array<cublasHandle_t, kMaxDevices> handles{};
};

// Never destroyed: handles must not be touched after the driver has begun to shut down.
Library& TheLibrary() {
  static auto* library = new Library;
  return *library;
}

template <class Function>
bool Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// The major version of the headers: an older one may lack what the driver needs, a newer one may
// have changed.
const std::string& SharedObjectName() {
  static const std::string name = "libcublas.so." + std::to_string(CUBLAS_VER_MAJOR);
  return name;
}

void Load(Library& library) {
  library.tried = true;
  void* const handle = dlopen(SharedObjectName().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    library.fault = std::string("naive needs cuBLAS, and ") + SharedObjectName() +
                    " cannot be loaded: " + dlerror() +
                    "; install it (NVIDIA's package libcublas) or add its folder to the "
                    "loader's search path";
    return;
  }
  Functions& functions = library.functions;
  if (!Find(handle, "cublasCreate_v2", functions.create) ||
      !Find(handle, "cublasSetStream_v2", functions.set_stream) ||
      !Find(handle, "cublasGemmStridedBatchedEx", functions.gemm)) {
    library.fault = SharedObjectName() + " lacks a function that naive needs";
  }
}

}  // namespace

const char* CublasFault() {
  Library& library = TheLibrary();
  const std::lock_guard lock(library.mutex);
  if (!library.tried) Load(library);
  if (!library.fault.empty()) return library.fault.c_str();
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= kMaxDevices) {
    return "naive needs a CUDA device";
  }
  if (library.handles[device] == nullptr &&
      library.functions.create(&library.handles[device]) != CUBLAS_STATUS_SUCCESS) {
    library.handles[device] = nullptr;
    return "cuBLAS cannot be started on this device";
  }
  return nullptr;
}

cudaError_t Multiply(const BatchedProduct& product, cudaStream_t stream) {
  Library& library = TheLibrary();
  const std::lock_guard lock(library.mutex);
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  const cublasHandle_t handle = library.handles[device];
  if (handle == nullptr) return cudaErrorNotReady;
  if (library.functions.set_stream(handle, stream) != CUBLAS_STATUS_SUCCESS) {
    return cudaErrorInvalidResourceHandle;
  }
  const float one = 1.0F;
  const float zero = 0.0F;
  // Pedantic: FP32 products are not rounded to TF32, whatever the environment says.
  const cublasComputeType_t compute =
      product.type == CUDA_R_32F ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F;
  // cuBLAS is column-major: c^T[n][m] = b' a^T, and a row-major matrix is its own transpose there.
  const cublasStatus_t status = library.functions.gemm(
      handle, product.b_is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, CUBLAS_OP_N, product.n,
      product.m, product.k, &one, product.b, product.type, static_cast<int>(product.b_row),
      product.b_batch, product.a, product.type, static_cast<int>(product.a_row), product.a_batch,
      &zero, product.c, product.c_type, static_cast<int>(product.c_row), product.c_batch,
      product.num_batches, compute, CUBLAS_GEMM_DEFAULT);
  return status == CUBLAS_STATUS_SUCCESS ? cudaSuccess : cudaErrorUnknown;
}

}  // namespace attnd::kernels::naive
