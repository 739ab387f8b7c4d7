#include "kernels/naive_library.h"

#include "kernels/cpu/naive_gemm.h"
#include "kernels/cuda_kernels.h"

namespace attnd::kernels {

const char* NaiveFault(DeviceKind device) {
  return device == DeviceKind::kCpu ? GemmFault() : CudaNaiveFault();
}

}  // namespace attnd::kernels
