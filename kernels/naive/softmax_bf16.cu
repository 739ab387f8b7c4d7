#include "kernels/naive/softmax.cuh"

namespace attnd::kernels::naive {
template cudaError_t LaunchSoftmax<__nv_bfloat16>(const CudaLaunchParams&, const ChunkMatrices&,
                                                  cudaStream_t);
}  // namespace attnd::kernels::naive
