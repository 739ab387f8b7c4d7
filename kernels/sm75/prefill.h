// Fused prefill attention for Turing (mma.sync m16n8k8, no cp.async). Implementation and
// limits: prefill.cuh.
#pragma once

#include <cstdint>

#include "kernels/cuda/cuda_launch_params.h"

namespace attnd::kernels::sm75 {

// What a kernel variant can apply to scores. kPlain: causal and windows. kAll adds soft cap, ALiBi,
// bias and sinks.
enum class PrefillVariant : std::uint8_t { kPlain, kAll };

// Tile of a head_dim bucket and variant (defined in prefill.cuh).
template <int kHeadDim, PrefillVariant kVariant>
struct PrefillTile;

// Query rows of one PrefillTask.
constexpr int PrefillBlockQ(int head_dim_bucket) { return head_dim_bucket == 256 ? 64 : 128; }

// Sets the kernel's shared memory attribute and loads its code; once a device, before any launch.
template <class Element, int kHeadDim, PrefillVariant kVariant,
          class Tile = PrefillTile<kHeadDim, kVariant>>
cudaError_t PreparePrefill(cudaFuncAttributes* attributes);

// grid: num_tasks x num_heads. Allocates nothing, does not synchronise.
template <class Element, int kHeadDim, PrefillVariant kVariant,
          class Tile = PrefillTile<kHeadDim, kVariant>>
cudaError_t LaunchPrefill(const CudaLaunchParams& params, cudaStream_t stream);

}  // namespace attnd::kernels::sm75
