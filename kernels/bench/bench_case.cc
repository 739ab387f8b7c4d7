#include "kernels/bench/bench_case.h"

namespace attnd::kernels::bench {
namespace {

BenchCase Prefill(DataType type, int tokens, int num_heads, int num_kv_heads, int head_dim) {
  BenchCase bench_case;
  bench_case.data_type = type;
  bench_case.query_length = bench_case.kv_length = tokens;
  bench_case.num_heads = num_heads;
  bench_case.num_kv_heads = num_kv_heads;
  bench_case.head_dim = head_dim;
  return bench_case;
}

// One new token a sequence on a cache of 4096.
BenchCase Decode(DataType type, int num_sequences, int page_tokens, bool ascending_pages) {
  BenchCase bench_case;
  bench_case.operation = Operation::kDecode;
  bench_case.data_type = type;
  bench_case.num_sequences = num_sequences;
  bench_case.kv_length = 4096;
  bench_case.num_heads = 32;
  bench_case.num_kv_heads = 8;
  bench_case.head_dim = 128;
  bench_case.page_tokens = page_tokens;
  bench_case.ascending_pages = ascending_pages;
  return bench_case;
}

}  // namespace

const char* OperationName(Operation operation) {
  switch (operation) {
    case Operation::kPrefill:
      return "prefill";
    case Operation::kDecode:
      return "decode";
    case Operation::kNaive:
      return "naive";
    case Operation::kExact:
      return "exact";
    case Operation::kAppend:
      return "append";
    case Operation::kMergeStates:
      return "merge_states";
  }
  return "unknown";
}

const char* TypeName(DataType type) {
  switch (type) {
    case DataType::kFp32:
      return "fp32";
    case DataType::kFp16:
      return "fp16";
    case DataType::kBf16:
      return "bf16";
    case DataType::kInt8:
      return "int8";
    case DataType::kFp8E4m3:
      return "fp8_e4m3";
  }
  return "unknown";
}

std::string BenchCase::Name() const {
  std::string name = OperationName(operation);
  name += std::string("/") + TypeName(data_type) + "/" + std::to_string(num_sequences) + "x";
  if (query_length != kv_length) name += std::to_string(query_length) + "+";
  name += std::to_string(kv_length) + "/h" + std::to_string(num_heads) + "-" +
          std::to_string(num_kv_heads) + "/d" + std::to_string(head_dim);
  if (causal) name += "/causal";
  if (window_left >= 0) name += "/window" + std::to_string(window_left);
  if (page_tokens > 0) name += "/p" + std::to_string(page_tokens);
  if (ascending_pages) name += "/ascending";
  return name;
}

std::vector<BenchCase> AllCases() {
  std::vector<BenchCase> cases;
  for (const DataType type : {DataType::kFp32, DataType::kBf16}) {
    for (const int head_dim : {64, 128}) {
      for (const int tokens : {512, 1024, 2048, 4096, 8192, 16384}) {
        cases.push_back(Prefill(type, tokens, 8, 8, head_dim));
      }
    }
  }
  for (const DataType type : {DataType::kFp32, DataType::kFp16, DataType::kBf16}) {
    cases.push_back(Prefill(type, 2048, 32, 8, 128));
    BenchCase full = Prefill(type, 2048, 8, 8, 128);
    full.causal = false;
    cases.push_back(full);
    BenchCase window = Prefill(type, 8192, 8, 8, 128);
    window.window_left = 1023;
    cases.push_back(window);
  }
  for (const DataType type : {DataType::kFp32, DataType::kFp16, DataType::kBf16}) {
    cases.push_back(Decode(type, 1, 16, false));
    for (const int page_tokens : {16, 64}) {
      cases.push_back(Decode(type, 16, page_tokens, false));
      cases.push_back(Decode(type, 16, page_tokens, true));
    }
  }
  return cases;
}

}  // namespace attnd::kernels::bench
