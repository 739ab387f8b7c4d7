#include "kernels/any/decode_dot.cuh"

namespace attnd::kernels::any {
template cudaError_t PrepareDecodeDot<__nv_bfloat16, 128>(cudaFuncAttributes*);
template cudaError_t LaunchDecodeDot<__nv_bfloat16, 128>(const CudaLaunchParams&, cudaStream_t);
}  // namespace attnd::kernels::any
