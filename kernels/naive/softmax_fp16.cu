#include "kernels/naive/softmax.cuh"

namespace attnd::kernels::naive {
template cudaError_t LaunchSoftmax<__half>(const CudaLaunchParams&, const ChunkMatrices&,
                                           cudaStream_t);
}  // namespace attnd::kernels::naive
