// CUDA launches: the upload of a plan, the launch itself, and the synchronous form.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/any/convert.h"
#include "kernels/cuda/cuda_plan.h"
#include "kernels/naive/cublas_library.h"

namespace attnd::kernels {
namespace {

template <class T>
void Put(std::byte* upload, std::int64_t at, const std::vector<T>& values) {
  if (!values.empty()) std::memcpy(upload + at, values.data(), values.size() * sizeof(T));
}

template <class T>
T* At(std::byte* workspace, std::int64_t offset) {
  return reinterpret_cast<T*>(workspace + offset);
}

// The copy as a job, and the sequence that the kernel sees instead.
any::ConvertJob Redirect(const CudaPlanDetail& detail, const PlannedCopy& copy,
                         AttentionSequence& sequence, std::byte* workspace) {
  const std::int64_t element = ElementBytes(detail.params.data_type);
  const bool keys = copy.tensor == PlannedCopy::kKey || copy.tensor == PlannedCopy::kValue;
  const std::int64_t padded = detail.padded_row_bytes;
  std::byte* const place = workspace + copy.offset;
  any::ConvertJob job;
  job.tokens = keys ? sequence.kv_length : sequence.query_length;
  job.heads = keys ? detail.params.num_kv_heads : detail.params.num_heads;
  job.row_bytes = static_cast<std::int32_t>(detail.params.head_dim * element);
  job.padded_bytes = detail.padded_row_bytes;
  job.to = place;
  job.to_token_stride = job.heads * padded;
  job.to_head_stride = padded;
  const std::int64_t token_stride = job.heads * padded / element;
  const std::int64_t head_stride = padded / element;
  const auto from = [&](const void* base, std::int64_t token, std::int64_t head) {
    job.from = static_cast<const std::byte*>(base);
    job.from_token_stride = token * element;
    job.from_head_stride = head * element;
  };
  switch (copy.tensor) {
    case PlannedCopy::kQuery:
      from(sequence.q, sequence.q_token_stride, sequence.q_head_stride);
      sequence.q = place;
      sequence.q_token_stride = token_stride;
      sequence.q_head_stride = head_stride;
      break;
    case PlannedCopy::kKey:
      from(sequence.kv.k, sequence.kv.k_token_stride, sequence.kv.k_head_stride);
      sequence.kv.k = place;
      sequence.kv.k_token_stride = token_stride;
      sequence.kv.k_head_stride = head_stride;
      break;
    case PlannedCopy::kValue:
      from(sequence.kv.v, sequence.kv.v_token_stride, sequence.kv.v_head_stride);
      sequence.kv.v = place;
      sequence.kv.v_token_stride = token_stride;
      sequence.kv.v_head_stride = head_stride;
      break;
    case PlannedCopy::kOutput:  // the other way round, after the launch
      job.from = place;
      job.from_token_stride = job.heads * padded;
      job.from_head_stride = padded;
      job.to = static_cast<std::byte*>(sequence.o);
      job.to_token_stride = sequence.o_token_stride * element;
      job.to_head_stride = sequence.o_head_stride * element;
      job.padded_bytes = job.row_bytes;
      sequence.o = place;
      sequence.o_token_stride = token_stride;
      sequence.o_head_stride = head_stride;
      break;
  }
  return job;
}

CudaLaunchParams MakeParams(const CudaPlanDetail& detail, std::byte* workspace) {
  const WorkspaceLayout& at = detail.layout;
  CudaLaunchParams params;
  params.attention = detail.params;
  params.attention.sequences = At<const AttentionSequence>(workspace, at.sequences);
  params.pages = MakePagePool(detail.params);
  params.group = detail.params.num_heads / detail.params.num_kv_heads;
  params.prefill_tasks = At<const PrefillTask>(workspace, at.prefill_tasks);
  params.decode_tasks = At<const DecodeTask>(workspace, at.decode_tasks);
  params.decode_plans = At<const DecodeSequencePlan>(workspace, at.decode_plans);
  params.num_tasks =
      static_cast<std::int32_t>(std::max(detail.prefill_tasks.size(), detail.decode.tasks.size()));
  params.tail_heads = detail.tail_heads;
  params.tail_order = At<const std::int32_t>(workspace, at.tail_order);
  params.max_query_rows = detail.decode.max_query_rows;
  params.max_splits = std::max(detail.decode.max_splits, 1);
  params.partial_o = At<float>(workspace, at.partial_o);
  params.partial_state = At<float2>(workspace, at.partial_state);
  params.status = At<CudaLaunchStatus>(workspace, at.status);
  params.nonfinite_tiles = At<std::uint32_t>(workspace, at.flags);
  if (detail.rerun_flags != nullptr) {
    params.rerun_of = At<const std::int32_t>(workspace, at.rerun_of);
    params.rerun_flags = detail.rerun_flags;
  }
  return params;
}

LaunchStatus StatusOf(cudaError_t error) {
  return error == cudaSuccess ? LaunchStatus::kOk : LaunchStatus::kDeviceFault;
}

// Device memory of one synchronous launch.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::int64_t bytes) {
    if (cudaMalloc(&data_, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1))) !=
        cudaSuccess) {
      data_ = nullptr;
    }
  }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

// Steps 3 to 6 of cuda_kernels.h.
LaunchStatus RunPlan(const CudaPlan& plan, const AttentionParams& params, std::byte* workspace,
                     CudaStream stream, CudaLaunchStatus& status) {
  if (plan.attention.row == nullptr) return LaunchStatus::kUnsupported;
  if (workspace == nullptr) return LaunchStatus::kDeviceFault;
  std::vector<std::byte> upload(static_cast<std::size_t>(plan.upload_bytes));
  EncodeCudaAttention(plan, params, workspace, upload.data());
  if (cudaMemcpyAsync(workspace, upload.data(), upload.size(), cudaMemcpyHostToDevice, stream) !=
      cudaSuccess) {
    return LaunchStatus::kDeviceFault;
  }
  const LaunchStatus launched = LaunchCudaAttention(plan, workspace, stream);
  if (launched != LaunchStatus::kOk) return launched;
  if (cudaMemcpyAsync(&status, workspace + plan.status_offset, sizeof(status),
                      cudaMemcpyDeviceToHost, stream) != cudaSuccess ||
      cudaStreamSynchronize(stream) != cudaSuccess) {
    return LaunchStatus::kDeviceFault;
  }
  return (status.faults & kCudaPageOutOfPool) != 0 ? LaunchStatus::kPageOutOfPool
                                                   : LaunchStatus::kOk;
}

}  // namespace

LaunchStatus PrepareCudaRow(const KernelRow& row) {
  for (const CudaKernelRow& candidate : CudaKernelTable()) {
    if (std::strcmp(candidate.name, row.name) != 0) continue;
    const cudaError_t error = candidate.prepare(nullptr);
    return error == cudaErrorNotSupported ? LaunchStatus::kUnsupported : StatusOf(error);
  }
  return LaunchStatus::kUnsupported;
}

const char* CudaNaiveFault() { return naive::CublasFault(); }

void EncodeCudaAttention(const CudaPlan& plan, const AttentionParams& params, std::byte* workspace,
                         std::byte* upload) {
  const CudaPlanDetail& detail = *plan.detail;
  const WorkspaceLayout& at = detail.layout;
  std::vector<AttentionSequence> sequences(params.sequences,
                                           params.sequences + params.num_sequences);
  std::vector<any::ConvertJob> jobs;
  for (const auto* copies : {&detail.inputs, &detail.outputs}) {
    for (const PlannedCopy& copy : *copies) {
      jobs.push_back(
          Redirect(detail, copy, sequences[static_cast<std::size_t>(copy.sequence)], workspace));
    }
  }
  std::memset(upload, 0, static_cast<std::size_t>(plan.upload_bytes));
  Put(upload, at.sequences, sequences);
  Put(upload, at.prefill_tasks, detail.prefill_tasks);
  Put(upload, at.rerun_of, detail.rerun_of);
  Put(upload, at.decode_tasks, detail.decode.tasks);
  Put(upload, at.decode_plans, detail.decode.sequences);
  Put(upload, at.jobs, jobs);
  Put(upload, at.tail_order, detail.tail_order);
}

LaunchStatus LaunchCudaAttention(const CudaPlan& plan, std::byte* workspace, CudaStream stream) {
  if (plan.attention.row == nullptr) return LaunchStatus::kUnsupported;
  const CudaPlanDetail& detail = *plan.detail;
  const CudaLaunchParams params = MakeParams(detail, workspace);
  const auto* jobs = At<const any::ConvertJob>(workspace, detail.layout.jobs);
  const int inputs = static_cast<int>(detail.inputs.size());
  cudaError_t error = any::LaunchConvert(jobs, inputs, stream);
  if (error == cudaSuccess && detail.row->launch_naive != nullptr) {
    error = detail.row->launch_naive(params, detail.naive, detail.sequences.data(),
                                     workspace + detail.layout.scratch, stream);
  } else if (error == cudaSuccess && params.num_tasks > 0) {
    error = detail.row->launch(params, stream);
  }
  if (error == cudaSuccess) {
    error = any::LaunchConvert(jobs + inputs, static_cast<int>(detail.outputs.size()), stream);
  }
  return StatusOf(error);
}

LaunchResult RunCudaAttention(const KernelRow& row, const AttentionParams& params,
                              const DeviceLimits& limits, const PlanOptions& options,
                              CudaStream stream) {
  LaunchResult result;
  result.status = PrepareCudaRow(row);
  if (result.status != LaunchStatus::kOk) return result;
  const CudaPlan plan = PlanCudaAttention(row, params, limits, options);
  const DeviceBytes workspace(plan.attention.workspace_bytes);
  CudaLaunchStatus status{};
  result.status = RunPlan(plan, params, workspace.data(), stream, status);
  if (result.status != LaunchStatus::kOk || status.nonfinite_tiles == 0) return result;
  result.exact_reruns = status.nonfinite_tiles;
  const CudaPlan rerun = PlanCudaRerun(plan, params, workspace.data());
  if (rerun.attention.row == nullptr) return {LaunchStatus::kUnsupported, 0};
  result.status = PrepareCudaRow(*rerun.attention.row);
  if (result.status != LaunchStatus::kOk) return result;
  const DeviceBytes rerun_workspace(rerun.attention.workspace_bytes);
  result.status = RunPlan(rerun, params, rerun_workspace.data(), stream, status);
  return result;
}

}  // namespace attnd::kernels
