#include "kernels/any/decode_dot.cuh"

namespace attnd::kernels::any {
template cudaError_t PrepareDecodeDot<float, 128>(cudaFuncAttributes*);
template cudaError_t LaunchDecodeDot<float, 128>(const CudaLaunchParams&, cudaStream_t);
}  // namespace attnd::kernels::any
