// What a build without CUDA has in place of the CUDA rows.
#include "kernels/cuda/cuda_rows.h"
#include "kernels/cuda_kernels.h"

namespace attnd::kernels {

std::span<const KernelRow> CudaRows() { return {}; }

LaunchStatus PrepareCudaRow(const KernelRow& /*row*/) { return LaunchStatus::kUnsupported; }

const char* CudaNaiveFault() { return "this build has no CUDA kernels"; }

CudaPlan PlanCudaAttention(const KernelRow& /*row*/, const AttentionParams& /*params*/,
                           const DeviceLimits& /*limits*/, const PlanOptions& /*options*/) {
  return {};
}

CudaPlan PlanCudaRerun(const CudaPlan& /*plan*/, const AttentionParams& /*params*/,
                       const std::byte* /*workspace*/) {
  return {};
}

void EncodeCudaAttention(const CudaPlan& /*plan*/, const AttentionParams& /*params*/,
                         std::byte* /*workspace*/, std::byte* /*upload*/) {}

LaunchStatus LaunchCudaAttention(const CudaPlan& /*plan*/, std::byte* /*workspace*/,
                                 CudaStream /*stream*/) {
  return LaunchStatus::kUnsupported;
}

LaunchResult RunCudaAttention(const KernelRow& /*row*/, const AttentionParams& /*params*/,
                              const DeviceLimits& /*limits*/, const PlanOptions& /*options*/,
                              CudaStream /*stream*/) {
  return {LaunchStatus::kUnsupported, 0};
}

LaunchStatus LaunchCudaAppend(const AppendParams& /*params*/,
                              const AppendSequence* /*device_sequences*/,
                              CudaLaunchStatus* /*status*/, CudaStream /*stream*/) {
  return LaunchStatus::kUnsupported;
}

LaunchStatus LaunchCudaRotateQueries(std::span<const QueryRotation> /*rotations*/,
                                     const QueryRotation* /*device_rotations*/, DataType /*type*/,
                                     int /*num_heads*/, int /*head_dim*/, CudaStream /*stream*/) {
  return LaunchStatus::kUnsupported;
}

LaunchStatus LaunchCudaMergeStates(const MergeParams& /*params*/, CudaStream /*stream*/) {
  return LaunchStatus::kUnsupported;
}

CudaCeilings MeasureCudaCeilings(double /*seconds*/) { return {}; }

}  // namespace attnd::kernels
