#include "kernels/bench/cuda_bench_library.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <cuda_bf16.h>

#include "kernels/any/append.h"
#include "kernels/any/merge_states.h"
#include "kernels/cuda/cuda_kernel_table.h"
#include "kernels/cuda/decode_plan.h"
#include "kernels/cuda/prefill_plan.h"

namespace {

using attnd::kernels::AttentionSequence;
using attnd::kernels::CudaKernelRow;
using attnd::kernels::CudaLaunchParams;
using attnd::kernels::DataType;
using attnd::kernels::Operation;

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

}  // namespace

struct AttndBenchLaunch {
  const CudaKernelRow* row = nullptr;
  CudaLaunchParams params;
  std::size_t nonfinite_words = 0;
  std::vector<void*> owned;
};

const char* AttndBenchRows() {
  static const std::string names = [] {
    std::string all;
    for (const CudaKernelRow& row : attnd::kernels::CudaKernelTable()) {
      all += std::string(row.name) + " ";
    }
    return all;
  }();
  return names.c_str();
}

AttndBenchLaunch* AttndBenchPlan(const AttndBenchCall* call, const char* name, int forced_splits) {
  const auto table = attnd::kernels::CudaKernelTable();
  const auto row = std::find_if(table.begin(), table.end(), [&](const CudaKernelRow& candidate) {
    return std::strcmp(candidate.name, name) == 0;
  });
  if (row == table.end() || row->prepare() != cudaSuccess) return nullptr;
  auto launch = std::make_unique<AttndBenchLaunch>();
  launch->row = &*row;

  std::vector<AttentionSequence> sequences;
  sequences.reserve(static_cast<std::size_t>(call->num_sequences));
  for (int i = 0; i < call->num_sequences; ++i) sequences.push_back(MakeSequence(*call, i));
  CudaLaunchParams& params = launch->params;
  params.attention.data_type = static_cast<DataType>(call->data_type);
  params.attention.kv_data_type = params.attention.data_type;
  params.attention.num_heads = call->num_heads;
  params.attention.num_kv_heads = call->num_kv_heads;
  params.attention.head_dim = call->head_dim;
  params.attention.partial = call->partial != 0;
  params.attention.sequences = sequences.data();
  params.attention.num_sequences = call->num_sequences;
  params.attention.pool = static_cast<const std::byte*>(call->pool);
  params.attention.pool_bytes = call->pool_bytes;
  params.attention.page_layout = {params.attention.data_type, std::max(call->page_tokens, 1),
                                  call->num_kv_heads, call->head_dim,
                                  attnd::kernels::PaddedHeadDim(call->head_dim)};
  params.group = call->num_heads / call->num_kv_heads;
  params.pages = attnd::kernels::MakePagePool(params.attention);

  if (row->operation == Operation::kDecode) {
    cudaDeviceProp device;
    cudaGetDeviceProperties(&device, 0);
    attnd::kernels::DecodePlanOptions options;
    options.num_multiprocessors = device.multiProcessorCount;
    options.block_rows = row->block_rows;
    options.forced_splits = forced_splits;
    const auto plan = attnd::kernels::PlanDecode(params.attention, options);
    params.decode_tasks = Upload(plan.tasks, launch->owned);
    params.decode_plans = Upload(plan.sequences, launch->owned);
    params.num_tasks = static_cast<int>(plan.tasks.size());
    params.max_query_rows = plan.max_query_rows;
    params.max_splits = plan.max_splits;
    params.partial_o =
        Upload(std::vector<float>(static_cast<std::size_t>(plan.partial_rows * call->head_dim)),
               launch->owned);
    params.partial_state =
        Upload(std::vector<float2>(static_cast<std::size_t>(plan.partial_rows)), launch->owned);
  } else {
    const auto tasks = attnd::kernels::PlanPrefillTasks(params.attention, row->block_rows);
    params.prefill_tasks = Upload(tasks, launch->owned);
    params.num_tasks = static_cast<int>(tasks.size());
  }
  launch->nonfinite_words =
      (static_cast<std::size_t>(params.num_tasks) * call->num_heads + 31) / 32;
  params.nonfinite_tiles =
      Upload(std::vector<std::uint32_t>(launch->nonfinite_words), launch->owned);
  params.error_word = Upload(std::vector<std::uint32_t>(1), launch->owned);
  params.attention.sequences = Upload(sequences, launch->owned);
  return cudaGetLastError() == cudaSuccess ? launch.release() : nullptr;
}

int AttndBenchRun(AttndBenchLaunch* launch, cudaStream_t stream) {
  return launch->row->launch(launch->params, stream);
}

int AttndBenchSplits(const AttndBenchLaunch* launch) { return launch->params.max_splits; }

void AttndBenchStatus(AttndBenchLaunch* launch, std::uint32_t* error_word,
                      std::int32_t* nonfinite) {
  std::vector<std::uint32_t> words(launch->nonfinite_words);
  cudaMemcpy(words.data(), launch->params.nonfinite_tiles, words.size() * 4,
             cudaMemcpyDeviceToHost);
  cudaMemcpy(error_word, launch->params.error_word, 4, cudaMemcpyDeviceToHost);
  *nonfinite = 0;
  for (const std::uint32_t word : words) *nonfinite += std::popcount(word);
  cudaMemset(launch->params.nonfinite_tiles, 0, words.size() * 4);
  cudaMemset(launch->params.error_word, 0, 4);
}

void AttndBenchFree(AttndBenchLaunch* launch) {
  for (void* pointer : launch->owned) cudaFree(pointer);
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
  attnd::kernels::AttentionParams layout;
  layout.page_layout = {DataType::kBf16, page_tokens, num_kv_heads, head_dim,
                        attnd::kernels::PaddedHeadDim(head_dim)};
  layout.pool = static_cast<const std::byte*>(pool);
  layout.pool_bytes = pool_bytes;
  attnd::kernels::AppendSequence sequence;
  sequence.k = k;
  sequence.v = v;
  sequence.num_tokens = num_tokens;
  sequence.first_token = first_token;
  sequence.first_position = first_position;
  sequence.page_table = page_table;
  sequence.rope = MakeRope(rope);
  std::vector<void*> owned;
  attnd::kernels::any::CudaAppendParams params;
  params.sequences = Upload(std::vector{sequence}, owned);
  params.num_sequences = 1;
  params.max_tokens = num_tokens;
  params.pages = attnd::kernels::MakePagePool(layout);
  params.pool = static_cast<std::byte*>(pool);
  params.num_kv_heads = num_kv_heads;
  params.head_dim = head_dim;
  params.padded_head_dim = layout.page_layout.padded_head_dim;
  params.error_word = Upload(std::vector<std::uint32_t>(1), owned);
  cudaError_t error = attnd::kernels::any::LaunchAppend<__nv_bfloat16>(params, nullptr);
  std::uint32_t word = 0;
  if (error == cudaSuccess) {
    error = cudaMemcpy(&word, params.error_word, sizeof(word), cudaMemcpyDeviceToHost);
  }
  Free(owned);
  return word != 0 ? -1 : static_cast<int>(error);
}

int AttndBenchRotate(void* q, std::int32_t num_tokens, std::int32_t num_heads,
                     std::int32_t head_dim, std::int64_t first_position,
                     const AttndBenchRope* rope) {
  const cudaError_t error = attnd::kernels::any::LaunchRotateQueries(
      static_cast<__nv_bfloat16*>(q), num_tokens, num_heads, head_dim, first_position,
      MakeRope(rope), nullptr);
  return error != cudaSuccess ? error : cudaDeviceSynchronize();
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
  const attnd::kernels::any::CudaMergeParams params{Upload(o_pointers, owned),
                                                    Upload(lse_pointers, owned),
                                                    parts,
                                                    rows,
                                                    head_dim,
                                                    sink_logits,
                                                    o,
                                                    lse};
  cudaError_t error = attnd::kernels::any::LaunchMergeStates<float>(params, nullptr);
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  Free(owned);
  return error;
}
