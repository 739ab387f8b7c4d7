#include "kernels/sm75/prefill.cuh"

namespace attnd::kernels::sm75 {
template cudaError_t PreparePrefill<__half, 256, PrefillVariant::kPlain>(cudaFuncAttributes*);
template cudaError_t LaunchPrefill<__half, 256, PrefillVariant::kPlain>(const CudaLaunchParams&,
                                                                        cudaStream_t);
}  // namespace attnd::kernels::sm75
