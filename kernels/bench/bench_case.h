// The operations and shapes that attnbench walks.
#pragma once

#include <string>
#include <vector>

#include "kernels/attention_kernels.h"

namespace attnd::kernels::bench {

// A batch of equal sequences, random data. Prefill reads contiguous K and V, decode a paged cache.
struct BenchCase {
  Operation operation = Operation::kPrefill;  // or kDecode
  DataType data_type = DataType::kFp32;
  int num_sequences = 1;
  int query_length = 1;
  int kv_length = 1;
  int num_heads = 1;
  int num_kv_heads = 1;
  int head_dim = 64;
  bool causal = true;
  int window_left = -1;  // -1: none
  int page_tokens = 0;   // 0: contiguous
  // Pages of a sequence follow each other, as a prompt written into free slabs has them; else they
  // lie in random order, as a cache that has been in use for a while hands them out.
  bool ascending_pages = false;

  // "prefill/bf16/1x4096/h8-8/d64/causal",
  // "decode/bf16/16x1+4096/h32-8/d128/causal/p16/ascending": what --filter matches.
  std::string Name() const;
};

const char* OperationName(Operation operation);
const char* TypeName(DataType type);

// Every case, in the order of the report.
std::vector<BenchCase> AllCases();

}  // namespace attnd::kernels::bench
