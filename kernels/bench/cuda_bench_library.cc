#include "kernels/bench/cuda_bench_library.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda_kernels.h"

namespace {

using attnd::kernels::AttentionSequence;
using attnd::kernels::CudaLaunchStatus;
using attnd::kernels::CudaPlan;
using attnd::kernels::DataType;
using attnd::kernels::KernelRow;
using attnd::kernels::LaunchStatus;

std::byte* Offset(void* base, std::int64_t elements, int element_bytes) {
  return static_cast<std::byte*>(base) + elements * element_bytes;
}

AttentionSequence MakeSequence(const AttndBenchCall& call, int i) {
  const int bytes = attnd::kernels::ElementBytes(static_cast<DataType>(call.data_type));
  AttentionSequence sequence;
  sequence.q = Offset(call.q, i * call.q_sequence, bytes);
  sequence.q_token_stride = call.q_token;
  sequence.q_head_stride = call.q_head;
  sequence.o = Offset(call.o, i * call.o_sequence, call.partial != 0 ? 4 : bytes);
  sequence.o_token_stride = call.o_token;
  sequence.o_head_stride = call.o_head;
  if (call.lse != nullptr) sequence.lse = call.lse + i * call.lse_sequence;
  if (call.page_table != nullptr) {
    sequence.kv.page_table = call.page_table + i * call.page_table_stride;
  } else {
    sequence.kv.k = Offset(call.k, i * call.k_sequence, bytes);
    sequence.kv.v = Offset(call.v, i * call.k_sequence, bytes);
    sequence.kv.k_token_stride = sequence.kv.v_token_stride = call.k_token;
    sequence.kv.k_head_stride = sequence.kv.v_head_stride = call.k_head;
  }
  sequence.query_length = call.query_lengths[i];
  sequence.kv_length = call.kv_lengths[i];
  sequence.query_position = call.kv_lengths[i] - call.query_lengths[i];
  sequence.causal = call.causal != 0;
  sequence.window_left = call.window_left;
  sequence.window_right = call.window_right;
  sequence.softmax_scale = call.softmax_scale;
  sequence.logits_soft_cap = call.soft_cap;
  sequence.alibi_slopes = call.alibi_slopes;
  sequence.sink_logits = call.sink_logits;
  sequence.bias = call.bias;
  sequence.bias_head_stride = call.bias_head;
  sequence.bias_row_stride = call.bias_row;
  return sequence;
}

template <class T>
T* Upload(const std::vector<T>& host, std::vector<void*>& owned) {
  void* device = nullptr;
  const std::size_t bytes = std::max<std::size_t>(host.size() * sizeof(T), 16);
  if (cudaMalloc(&device, bytes) != cudaSuccess) return nullptr;
  owned.push_back(device);
  cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice);
  return static_cast<T*>(device);
}

int Multiprocessors() {
  int device = 0;
  int count = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

}  // namespace

struct AttndBenchLaunch {
  CudaPlan plan;
  std::byte* workspace = nullptr;
};

const char* AttndBenchRows() {
  static const std::string names = [] {
    std::string all;
    for (const KernelRow& row : attnd::kernels::KernelTable()) {
      if (row.device != attnd::kernels::DeviceKind::kCuda ||
          row.operation == attnd::kernels::Operation::kAppend ||
          row.operation == attnd::kernels::Operation::kMergeStates) {
        continue;
      }
      all += std::string(row.name) + " ";
    }
    return all;
  }();
  return names.c_str();
}

AttndBenchLaunch* AttndBenchPlan(const AttndBenchCall* call, const char* name, int forced_splits) {
  const KernelRow* row = attnd::kernels::FindKernelByName(name);
  if (row == nullptr || PrepareCudaRow(*row) != LaunchStatus::kOk) return nullptr;
  std::vector<AttentionSequence> sequences;
  sequences.reserve(static_cast<std::size_t>(call->num_sequences));
  for (int i = 0; i < call->num_sequences; ++i) sequences.push_back(MakeSequence(*call, i));
  attnd::kernels::AttentionParams params;
  params.data_type = static_cast<DataType>(call->data_type);
  params.kv_data_type = params.data_type;
  params.num_heads = call->num_heads;
  params.num_kv_heads = call->num_kv_heads;
  params.head_dim = call->head_dim;
  params.partial = call->partial != 0;
  params.sequences = sequences.data();
  params.num_sequences = call->num_sequences;
  params.pool = static_cast<const std::byte*>(call->pool);
  params.pool_bytes = call->pool_bytes;
  params.page_layout = {params.data_type, std::max(call->page_tokens, 1), call->num_kv_heads,
                        call->head_dim, attnd::kernels::PaddedHeadDim(call->head_dim)};
  attnd::kernels::DeviceLimits limits;
  limits.kind = attnd::kernels::DeviceKind::kCuda;
  limits.num_threads = Multiprocessors();
  attnd::kernels::PlanOptions options;
  options.forced_splits = forced_splits;
  auto launch = std::make_unique<AttndBenchLaunch>();
  launch->plan = PlanCudaAttention(*row, params, limits, options);
  if (launch->plan.attention.row == nullptr) return nullptr;
  void* workspace = nullptr;
  if (cudaMalloc(&workspace, static_cast<std::size_t>(launch->plan.attention.workspace_bytes)) !=
      cudaSuccess) {
    return nullptr;
  }
  launch->workspace = static_cast<std::byte*>(workspace);
  std::vector<std::byte> upload(static_cast<std::size_t>(launch->plan.upload_bytes));
  EncodeCudaAttention(launch->plan, params, launch->workspace, upload.data());
  cudaMemcpy(workspace, upload.data(), upload.size(), cudaMemcpyHostToDevice);
  if (cudaGetLastError() == cudaSuccess) return launch.release();
  cudaFree(workspace);
  return nullptr;
}

int AttndBenchRun(AttndBenchLaunch* launch, cudaStream_t stream) {
  return static_cast<int>(LaunchCudaAttention(launch->plan, launch->workspace, stream));
}

int AttndBenchSplits(const AttndBenchLaunch* launch) { return launch->plan.attention.num_splits; }

std::int64_t AttndBenchWorkspaceBytes(const AttndBenchLaunch* launch) {
  return launch->plan.attention.workspace_bytes;
}

void AttndBenchStatus(AttndBenchLaunch* launch, std::uint32_t* faults, std::int32_t* nonfinite) {
  CudaLaunchStatus status{};
  cudaMemcpy(&status, launch->workspace + launch->plan.status_offset, sizeof(status),
             cudaMemcpyDeviceToHost);
  *faults = status.faults;
  *nonfinite = static_cast<std::int32_t>(status.nonfinite_tiles);
  cudaMemset(launch->workspace + launch->plan.status_offset, 0,
             static_cast<std::size_t>(launch->plan.upload_bytes - launch->plan.status_offset));
}

void AttndBenchFree(AttndBenchLaunch* launch) {
  cudaFree(launch->workspace);
  delete launch;
}

namespace {

attnd::kernels::RopeParams MakeRope(const AttndBenchRope* rope) {
  attnd::kernels::RopeParams params;
  if (rope == nullptr) return params;
  params.enabled = true;
  params.theta = rope->theta;
  params.rotary_dim = rope->rotary_dim;
  params.interleaved = rope->interleaved != 0;
  params.position_scale = rope->position_scale;
  params.amplitude = rope->amplitude;
  return params;
}

void Free(const std::vector<void*>& owned) {
  for (void* pointer : owned) cudaFree(pointer);
}

}  // namespace

int AttndBenchAppend(const void* k, const void* v, std::int32_t num_tokens,
                     std::int32_t num_kv_heads, std::int32_t head_dim, std::int64_t first_token,
                     std::int64_t first_position, const std::uint32_t* page_table,
                     std::int32_t page_tokens, void* pool, std::int64_t pool_bytes,
                     const AttndBenchRope* rope) {
  attnd::kernels::AppendSequence sequence;
  sequence.k = k;
  sequence.v = v;
  sequence.num_tokens = num_tokens;
  sequence.first_token = first_token;
  sequence.first_position = first_position;
  sequence.page_table = page_table;
  sequence.rope = MakeRope(rope);
  attnd::kernels::AppendParams params;
  params.sequences = &sequence;
  params.num_sequences = 1;
  params.page_layout = {DataType::kBf16, page_tokens, num_kv_heads, head_dim,
                        attnd::kernels::PaddedHeadDim(head_dim)};
  params.pool = static_cast<std::byte*>(pool);
  params.pool_bytes = pool_bytes;
  std::vector<void*> owned;
  const auto* device_sequences = Upload(std::vector{sequence}, owned);
  CudaLaunchStatus* status = Upload(std::vector<CudaLaunchStatus>(1), owned);
  const LaunchStatus launched = LaunchCudaAppend(params, device_sequences, status, nullptr);
  CudaLaunchStatus result{};
  const cudaError_t error = cudaMemcpy(&result, status, sizeof(result), cudaMemcpyDeviceToHost);
  Free(owned);
  if (result.faults != 0) return -1;
  return launched != LaunchStatus::kOk ? static_cast<int>(launched) : static_cast<int>(error);
}

int AttndBenchRotate(void* q, std::int32_t num_tokens, std::int32_t num_heads,
                     std::int32_t head_dim, std::int64_t first_position,
                     const AttndBenchRope* rope) {
  const std::vector<attnd::kernels::QueryRotation> rotations = {
      {q, num_tokens, 0, first_position, MakeRope(rope)}};
  std::vector<void*> owned;
  const auto* device_rotations = Upload(rotations, owned);
  const LaunchStatus status = attnd::kernels::LaunchCudaRotateQueries(
      rotations, device_rotations, DataType::kBf16, num_heads, head_dim, nullptr);
  const cudaError_t error = cudaDeviceSynchronize();
  Free(owned);
  return status != LaunchStatus::kOk ? static_cast<int>(status) : static_cast<int>(error);
}

int AttndBenchMerge(const float* o_parts, const float* lse_parts, std::int32_t parts,
                    std::int64_t rows, std::int32_t head_dim, const float* sink_logits, float* o,
                    float* lse) {
  std::vector<const float*> o_pointers;
  std::vector<const float*> lse_pointers;
  for (int part = 0; part < parts; ++part) {
    o_pointers.push_back(o_parts + part * rows * head_dim);
    lse_pointers.push_back(lse_parts + part * rows);
  }
  std::vector<void*> owned;
  const attnd::kernels::MergeParams params{Upload(o_pointers, owned),
                                           Upload(lse_pointers, owned),
                                           parts,
                                           rows,
                                           head_dim,
                                           sink_logits,
                                           DataType::kFp32,
                                           o,
                                           lse};
  const LaunchStatus status = attnd::kernels::LaunchCudaMergeStates(params, nullptr);
  const cudaError_t error = cudaDeviceSynchronize();
  Free(owned);
  return status != LaunchStatus::kOk ? static_cast<int>(status) : static_cast<int>(error);
}
