#include "kernels/any/decode_dot.cuh"

namespace attnd::kernels::any {
template cudaError_t PrepareDecodeDot<float, 64>(cudaFuncAttributes*);
template cudaError_t LaunchDecodeDot<float, 64>(const CudaLaunchParams&, cudaStream_t);
}  // namespace attnd::kernels::any
