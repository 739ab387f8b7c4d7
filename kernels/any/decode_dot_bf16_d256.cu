#include "kernels/any/decode_dot.cuh"

namespace attnd::kernels::any {
template cudaError_t PrepareDecodeDot<__nv_bfloat16, 256>(cudaFuncAttributes*);
template cudaError_t LaunchDecodeDot<__nv_bfloat16, 256>(const CudaLaunchParams&, cudaStream_t);
}  // namespace attnd::kernels::any
