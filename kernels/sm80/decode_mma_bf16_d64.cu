#include "kernels/sm80/decode_mma.cuh"

namespace attnd::kernels::sm80 {
template cudaError_t PrepareDecodeMma<__nv_bfloat16, 64>(cudaFuncAttributes*);
template cudaError_t LaunchDecodeMma<__nv_bfloat16, 64>(const CudaLaunchParams&, cudaStream_t);
}  // namespace attnd::kernels::sm80
