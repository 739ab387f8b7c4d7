#include "kernels/sm75/decode_mma.cuh"

namespace attnd::kernels::sm75 {
template cudaError_t PrepareDecodeMma<__half, 64>(cudaFuncAttributes*);
template cudaError_t LaunchDecodeMma<__half, 64>(const CudaLaunchParams&, cudaStream_t);
}  // namespace attnd::kernels::sm75
