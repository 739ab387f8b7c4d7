#include "kernels/any/prefill_simt.cuh"

namespace attnd::kernels::any {
template cudaError_t PreparePrefillSimt<float, 128>(cudaFuncAttributes*);
template cudaError_t LaunchPrefillSimt<float, 128>(const CudaLaunchParams&, cudaStream_t);
}  // namespace attnd::kernels::any
