#include "kernels/any/prefill_simt.cuh"

namespace attnd::kernels::any {
template cudaError_t PreparePrefillSimt<__nv_bfloat16, 256>(cudaFuncAttributes*);
template cudaError_t LaunchPrefillSimt<__nv_bfloat16, 256>(const CudaLaunchParams&, cudaStream_t);
}  // namespace attnd::kernels::any
