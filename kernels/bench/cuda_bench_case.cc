#include "kernels/bench/cuda_bench_case.h"

#include <algorithm>

namespace attnd::kernels::bench {
namespace {

constexpr int kBatchTokens = 16384;

BenchCase Prefill(DataType type, int sequences, int tokens, int num_heads, int num_kv_heads,
                  int head_dim, bool causal) {
  BenchCase shape;
  shape.data_type = type;
  shape.num_sequences = sequences;
  shape.query_length = shape.kv_length = tokens;
  shape.num_heads = num_heads;
  shape.num_kv_heads = num_kv_heads;
  shape.head_dim = head_dim;
  shape.causal = causal;
  return shape;
}

// Every length of every head dimension, batch x tokens and heads x dims constant.
void AddPrefill(std::vector<CudaBenchCase>& cases, DataType type, const std::string& arch,
                const std::vector<std::string>& peers) {
  for (const int head_dim : {64, 128, 256}) {
    const int heads = 2048 / head_dim;
    for (const int tokens : {512, 1024, 2048, 4096, 8192, 16384}) {
      for (const bool causal : {false, true}) {
        cases.push_back(
            {Prefill(type, kBatchTokens / tokens, tokens, heads, heads, head_dim, causal), arch, 1,
             false, peers});
      }
    }
  }
}

// What fits into a T4's 15 GiB, in the type of its tensor cores.
void AddSmallDecode(std::vector<CudaBenchCase>& cases, int sequences, int cached, int num_heads,
                    int num_kv_heads, int head_dim) {
  CudaBenchCase bench_case;
  bench_case.shape =
      Prefill(DataType::kFp16, sequences, cached, num_heads, num_kv_heads, head_dim, true);
  bench_case.shape.operation = Operation::kDecode;
  bench_case.shape.query_length = 1;
  bench_case.shape.page_tokens = 32;
  bench_case.arch = "sm75";
  bench_case.graph_launches = 12;
  cases.push_back(bench_case);
}

void AddDecode(std::vector<CudaBenchCase>& cases, int sequences, int cached, int num_heads,
               int num_kv_heads, int page_tokens) {
  CudaBenchCase bench_case;
  bench_case.shape =
      Prefill(DataType::kBf16, sequences, cached, num_heads, num_kv_heads, 128, true);
  bench_case.shape.operation = Operation::kDecode;
  bench_case.shape.query_length = 1;
  bench_case.shape.page_tokens = page_tokens;
  bench_case.arch = "sm80";
  bench_case.graph_launches = 12;
  bench_case.peers = {"flash", "cudnn"};
  cases.push_back(bench_case);
}

}  // namespace

std::string CudaBenchCase::Name() const {
  std::string name = arch + "/" + shape.Name();
  if (with_naive) name += "/naive";
  return name;
}

std::vector<CudaBenchCase> AllCudaCases() {
  std::vector<CudaBenchCase> cases;
  AddPrefill(cases, DataType::kBf16, "sm80", {"flash"});
  for (const int tokens : {512, 2048, 8192, 32768}) {
    cases.push_back({Prefill(DataType::kBf16, std::max(1, 8192 / tokens), tokens, 32, 8, 128, true),
                     "sm80",
                     1,
                     false,
                     {"flash"}});
  }
  AddPrefill(cases, DataType::kFp16, "sm75", {"efficient"});
  for (const int head_dim : {64, 128, 256}) {
    AddSmallDecode(cases, 1, 8192, 32, 8, head_dim);
    AddSmallDecode(cases, 16, 2048, 32, 8, head_dim);
    AddSmallDecode(cases, 64, 1024, 32, 8, head_dim);
    AddSmallDecode(cases, 32, 4096, 32, 8, head_dim);
    AddSmallDecode(cases, 16, 2048, 32, 32, head_dim);
  }
  for (const int page_tokens : {16, 64}) {
    AddDecode(cases, 1, 8192, 32, 8, page_tokens);
    AddDecode(cases, 1, 8192, 32, 1, page_tokens);
    AddDecode(cases, 16, 2048, 32, 8, page_tokens);
    AddDecode(cases, 64, 8192, 32, 8, page_tokens);
    AddDecode(cases, 256, 1024, 32, 8, page_tokens);
    AddDecode(cases, 64, 8192, 32, 32, page_tokens);
    AddDecode(cases, 256, 1024, 32, 32, page_tokens);
    AddDecode(cases, 64, 2048, 32, 1, page_tokens);
    AddDecode(cases, 64, 8192, 64, 8, page_tokens);
    AddDecode(cases, 1, 131072, 32, 8, page_tokens);
  }
  for (const int tokens : {512, 2048, 4096, 8192}) {
    for (const bool causal : {false, true}) {
      cases.push_back({Prefill(DataType::kFp16, kBatchTokens / tokens, tokens, 16, 16, 128, causal),
                       "sm80",
                       1,
                       true,
                       {"eager", "flash"}});
    }
  }
  return cases;
}

}  // namespace attnd::kernels::bench
