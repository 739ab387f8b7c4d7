#include "kernels/sm80/prefill.cuh"

namespace attnd::kernels::sm80 {
template cudaError_t PreparePrefill<__half, 64, PrefillVariant::kPlain>(cudaFuncAttributes*);
template cudaError_t LaunchPrefill<__half, 64, PrefillVariant::kPlain>(const CudaLaunchParams&,
                                                                       cudaStream_t);
}  // namespace attnd::kernels::sm80
