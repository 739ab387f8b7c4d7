// C interface over the CUDA rows for the peer benchmarks, which run inside PyTorch's process so
// that both sides are timed by the same graph replays.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

extern "C" {

// One ragged batch. Pointers are device memory except where "host" is written; strides in elements.
struct AttndBenchCall {
  std::int32_t data_type;  // DataType
  std::int32_t num_heads, num_kv_heads, head_dim, partial;
  std::int32_t num_sequences;
  const std::int32_t* query_lengths;  // host [num_sequences]
  const std::int32_t* kv_lengths;     // host [num_sequences]
  void *q, *k, *v, *o;
  float* lse;  // or null
  std::int64_t q_sequence, q_token, q_head;
  std::int64_t k_sequence, k_token, k_head;  // v alike
  std::int64_t o_sequence, o_token, o_head;
  std::int64_t lse_sequence;
  std::int32_t causal;
  std::int64_t window_left, window_right;
  float softmax_scale, soft_cap;
  const float *alibi_slopes, *sink_logits, *bias;
  std::int64_t bias_head, bias_row;
  const std::uint32_t* page_table;  // or null; [num_sequences][page_table_stride]
  std::int64_t page_table_stride;
  std::int32_t page_tokens;
  void* pool;
  std::int64_t pool_bytes;
};

struct AttndBenchLaunch;  // a planned call with its device arrays

// Names of the rows, separated by spaces.
const char* AttndBenchRows();
// Null: no such row, or a CUDA error.
AttndBenchLaunch* AttndBenchPlan(const AttndBenchCall* call, const char* row, int forced_splits);
int AttndBenchRun(AttndBenchLaunch* launch, cudaStream_t stream);  // a LaunchStatus
int AttndBenchSplits(const AttndBenchLaunch* launch);
std::int64_t AttndBenchWorkspaceBytes(const AttndBenchLaunch* launch);
// Synchronises. CudaFault bits and the number of tiles flagged as non-finite since the last call.
void AttndBenchStatus(AttndBenchLaunch* launch, std::uint32_t* faults, std::int32_t* nonfinite);
void AttndBenchFree(AttndBenchLaunch* launch);

// Cache upkeep, BF16, one sequence, synchronous; 0, or -1 where a page lies outside the pool, or
// another error.
struct AttndBenchRope {
  double theta, position_scale, amplitude;
  std::int32_t rotary_dim, interleaved;
};
int AttndBenchAppend(const void* k, const void* v, std::int32_t num_tokens,
                     std::int32_t num_kv_heads, std::int32_t head_dim, std::int64_t first_token,
                     std::int64_t first_position, const std::uint32_t* page_table,
                     std::int32_t page_tokens, void* pool, std::int64_t pool_bytes,
                     const AttndBenchRope* rope);
int AttndBenchRotate(void* q, std::int32_t num_tokens, std::int32_t num_heads,
                     std::int32_t head_dim, std::int64_t first_position,
                     const AttndBenchRope* rope);
// o_parts [parts][rows][head_dim] and lse_parts [parts][rows], FP32, contiguous; o FP32.
int AttndBenchMerge(const float* o_parts, const float* lse_parts, std::int32_t parts,
                    std::int64_t rows, std::int32_t head_dim, const float* sink_logits, float* o,
                    float* lse);
}
