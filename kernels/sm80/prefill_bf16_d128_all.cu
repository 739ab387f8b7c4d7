#include "kernels/sm80/prefill.cuh"

namespace attnd::kernels::sm80 {
template cudaError_t PreparePrefill<__nv_bfloat16, 128, PrefillVariant::kAll>(cudaFuncAttributes*);
template cudaError_t LaunchPrefill<__nv_bfloat16, 128, PrefillVariant::kAll>(
    const CudaLaunchParams&, cudaStream_t);
}  // namespace attnd::kernels::sm80
