// cp.async: PTX ISA, "Data movement and conversion instructions: cp.async" (sm_80 and newer).
#pragma once

#include <cstdint>

namespace attnd::kernels::ptx {

// 16 bytes from device memory to shared memory past the L1; what lies beyond `source_bytes` (0 or
// 16) is filled with zeros, and with 0 nothing is read.
__device__ __forceinline__ void CpAsync16(std::uint32_t shared_address, const void* source,
                                          int source_bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(shared_address),
               "l"(__cvta_generic_to_global(source)), "r"(source_bytes)
               : "memory");
}

__device__ __forceinline__ void CpAsyncCommitGroup() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}

// Waits until at most kPending of this thread's groups are in flight.
template <int kPending>
__device__ __forceinline__ void CpAsyncWaitGroup() {
  static_assert(kPending >= 0);
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

}  // namespace attnd::kernels::ptx
