#include "kernels/any/prefill_simt.cuh"

namespace attnd::kernels::any {
template cudaError_t PreparePrefillSimt<__half, 64>(cudaFuncAttributes*);
template cudaError_t LaunchPrefillSimt<__half, 64>(const CudaLaunchParams&, cudaStream_t);
}  // namespace attnd::kernels::any
