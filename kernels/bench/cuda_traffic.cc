#include "kernels/bench/cuda_traffic.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <regex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/bench/bench_json.h"
#include "kernels/bench/bench_report.h"
#include "kernels/bench/build_commit.h"
#include "kernels/bench/cuda_bench_problem.h"
#include "kernels/cuda/ceilings.h"
#include "kernels/cuda/cuda_kernel_table.h"
#include "kernels/cuda/prefill_plan.h"
#include "kernels/cuda/prefill_traffic.h"
#include "kernels/kernel_cost.h"

namespace attnd::kernels::bench {
namespace {

constexpr std::int64_t kFlushBytes = std::int64_t{512} << 20;

struct Shape {
  int sequences, query_length, kv_length, num_heads, num_kv_heads, page_tokens;
  bool causal;
};

// Whole prompts: far beyond an L2 of 60 MB, about as large, inside it; K and V of a head up to 64
// MiB.
std::vector<Shape> PrefillShapes(int head_dim) {
  const int heads = 2048 / head_dim;
  return {{8, 4096, 4096, heads, heads, 0, true},
          {8, 4096, 4096, heads, heads, 0, false},
          {32, 1024, 1024, 4 * heads, heads, 64, true},
          {1, 16384, 16384, heads, heads, 0, false},
          {1, 2048, 2048, heads, heads, 0, true}};
}
std::vector<Shape> LongShapes() { return {{1, 65536, 65536, 4, 4, 0, true}}; }
std::vector<Shape> NaiveShapes() {
  return {{8, 2048, 2048, 16, 16, 0, false}, {2, 4096, 4096, 32, 8, 0, true}};
}
std::vector<Shape> DecodeShapes() {
  return {{64, 1, 8192, 32, 8, 16, true},  {256, 1, 1024, 32, 8, 64, true},
          {64, 1, 4096, 32, 32, 64, true}, {64, 4, 4096, 32, 4, 64, true},
          {16, 1, 2048, 32, 8, 16, true},  {1, 1, 8192, 32, 8, 16, true}};
}

std::vector<Shape> ShapesOf(const KernelRow& row) {
  switch (row.operation) {
    case Operation::kPrefill: {
      std::vector<Shape> shapes = PrefillShapes(row.max_head_dim);
      if (row.max_head_dim == 128) {
        for (const Shape& shape : LongShapes()) shapes.push_back(shape);
      }
      return shapes;
    }
    case Operation::kExact:
      return PrefillShapes(row.max_head_dim);
    case Operation::kNaive:
      return NaiveShapes();
    case Operation::kDecode:
      return DecodeShapes();
    default:
      return {};
  }
}

DataType TypeOf(const KernelRow& row) {
  for (const DataType type : {DataType::kFp32, DataType::kFp16, DataType::kBf16}) {
    if ((row.data_types & TypeBit(type)) != 0) return type;
  }
  throw std::runtime_error(std::string(row.name) + " has no type");
}

CudaBenchCase CaseOf(const KernelRow& row, const Shape& shape) {
  CudaBenchCase bench_case;
  BenchCase& to = bench_case.shape;
  to.operation = row.operation;
  to.data_type = TypeOf(row);
  to.num_sequences = shape.sequences;
  to.query_length = shape.query_length;
  to.kv_length = shape.kv_length;
  to.num_heads = shape.num_heads;
  to.num_kv_heads = shape.num_kv_heads;
  to.head_dim = row.operation == Operation::kNaive ? 128 : row.max_head_dim;
  to.causal = shape.causal;
  to.page_tokens = shape.page_tokens;
  return bench_case;
}

struct Traffic {
  cudaStream_t stream = nullptr;
  DeviceBytes flush = AllocateDevice(kFlushBytes + 256);
  std::int64_t l2_bytes = 0;

  void Flush() const {
    CheckCuda(any::LaunchReadAll(flush.get(), kFlushBytes,
                                 reinterpret_cast<float*>(flush.get() + kFlushBytes), stream),
              "flush");
  }
};

Json Line(const KernelRow& row, const BenchCase& shape, int num_splits, const KernelCost& cost) {
  return {{"op", OperationName(row.operation)},
          {"kernel", row.name},
          {"shape", ShapeJson(shape)},
          {"dtype", TypeName(shape.data_type)},
          {"num_splits", num_splits},
          {"min_read_bytes", cost.min_read_bytes},
          {"min_write_bytes", cost.min_write_bytes},
          {"model_read_bytes", cost.expected_read_bytes},
          {"model_write_bytes", cost.expected_write_bytes}};
}

// Each tile of a prefill or exact row may find K and V in the L2 or not: what device memory brings
// if none does.
void AddMostReadBytes(const KernelRow& row, const AttentionParams& params, Json& line) {
  if (row.operation != Operation::kPrefill && row.operation != Operation::kExact) return;
  for (const CudaKernelRow& candidate : CudaKernelTable()) {
    if (std::string_view(candidate.name) != row.name) continue;
    const PrefillPlan plan =
        PlanPrefill(params, candidate.block_rows, std::max(CurrentCard().num_threads, 1));
    const double each_once = line["min_read_bytes"].get<double>();
    double kv_once = 0;
    for (int i = 0; i < params.num_sequences; ++i) {
      kv_once += KvBytes(params, params.sequences[i], params.sequences[i].kv_length);
    }
    line["max_read_bytes"] = each_once - kv_once + AskedKvBytes(params, plan, candidate.block_rows);
  }
}

Json LaunchCase(const Traffic& traffic, const KernelRow& row, const Shape& shape) {
  const CudaBenchCase bench_case = CaseOf(row, shape);
  const CudaBenchProblem problem(bench_case, 1);
  if (PrepareCudaRow(row) != LaunchStatus::kOk) throw std::runtime_error("cannot be prepared");
  const AttentionParams& params = problem.params(0);
  const CudaPlan plan = PlanCudaAttention(row, params, CurrentCard(), {});
  if (plan.attention.row == nullptr) throw std::runtime_error("does not serve the case");
  const DeviceBytes workspace = AllocateDevice(plan.attention.workspace_bytes);
  std::vector<std::byte> upload(static_cast<std::size_t>(plan.upload_bytes));
  EncodeCudaAttention(plan, params, workspace.get(), upload.data());
  CheckCuda(cudaMemcpy(workspace.get(), upload.data(), upload.size(), cudaMemcpyHostToDevice),
            "upload");
  traffic.Flush();
  if (LaunchCudaAttention(plan, workspace.get(), traffic.stream) != LaunchStatus::kOk) {
    throw std::runtime_error("a launch failed");
  }
  traffic.Flush();
  CheckCuda(cudaStreamSynchronize(traffic.stream), row.name);
  Json line = Line(row, bench_case.shape, plan.attention.num_splits, plan.attention.cost);
  AddMostReadBytes(row, params, line);
  return line;
}

// K and V of one sequence into pages.
Json LaunchAppend(const Traffic& traffic, const KernelRow& row, DataType type) {
  constexpr int kTokens = 65536;
  AppendParams params;
  params.page_layout = {type, 16, 8, 128, 128};
  const std::int64_t pages = kTokens / params.page_layout.page_tokens;
  params.pool_bytes = pages * params.page_layout.page_bytes();
  const DeviceBytes pool = AllocateDevice(params.pool_bytes);
  const DeviceBytes rows = AllocateDevice(params.pool_bytes);  // K, then V: head_dim has no padding
  CheckCuda(cudaMemset(rows.get(), 0x3C, static_cast<std::size_t>(params.pool_bytes)), "fill");
  params.pool = pool.get();
  std::vector<std::uint32_t> table;
  for (std::int64_t page = pages - 1; page >= 0; --page) {
    table.push_back(
        static_cast<std::uint32_t>(page * (params.page_layout.page_bytes() / kPageUnitBytes)));
  }
  const DeviceBytes page_table = AllocateDevice(pages * 4);
  const DeviceBytes sequences = AllocateDevice(sizeof(AppendSequence));
  const DeviceBytes status = AllocateDevice(sizeof(CudaLaunchStatus));
  AppendSequence sequence;
  sequence.k = rows.get();
  sequence.v = rows.get() + params.pool_bytes / 2;
  sequence.num_tokens = kTokens;
  sequence.page_table = reinterpret_cast<const std::uint32_t*>(page_table.get());
  CheckCuda(cudaMemcpy(page_table.get(), table.data(), table.size() * 4, cudaMemcpyHostToDevice),
            "page table");
  CheckCuda(cudaMemcpy(sequences.get(), &sequence, sizeof(AppendSequence), cudaMemcpyHostToDevice),
            "sequence");
  CheckCuda(cudaMemset(status.get(), 0, sizeof(CudaLaunchStatus)), "status");
  params.sequences = &sequence;
  params.num_sequences = 1;
  traffic.Flush();
  if (LaunchCudaAppend(params, reinterpret_cast<const AppendSequence*>(sequences.get()),
                       reinterpret_cast<CudaLaunchStatus*>(status.get()),
                       traffic.stream) != LaunchStatus::kOk) {
    throw std::runtime_error("a launch failed");
  }
  traffic.Flush();
  CheckCuda(cudaStreamSynchronize(traffic.stream), row.name);
  BenchCase shape = CaseOf(row, {1, kTokens, kTokens, 8, 8, 16, false}).shape;
  shape.data_type = type;
  shape.head_dim = params.page_layout.head_dim;
  return Line(row, shape, 1, AppendCost(params));
}

}  // namespace

int RunCudaTraffic(const CudaBenchOptions& options) {
  std::ofstream json_file(options.json_file);
  if (!json_file) throw std::runtime_error("--traffic writes to --json FILE; cannot write it");
  Traffic traffic;
  cudaDeviceProp properties;
  CheckCuda(cudaGetDeviceProperties(&properties, 0), "device");
  CheckCuda(cudaMemset(traffic.flush.get(), 0x3C, kFlushBytes), "fill");
  const Json head = {{"commit", BuildCommit()},
                     {"command", options.command},
                     {"device", properties.name},
                     {"date", UtcNow()},
                     {"l2_bytes", properties.l2CacheSize}};
  json_file << head.dump() << std::endl;
  const std::regex filter(options.filter);
  for (const KernelRow& row : KernelTable()) {
    if (row.device != DeviceKind::kCuda || !std::regex_search(row.name, filter)) continue;
    if (row.operation == Operation::kAppend) {
      for (const DataType type : {DataType::kFp32, DataType::kFp16, DataType::kBf16}) {
        json_file << LaunchAppend(traffic, row, type).dump() << std::endl;
      }
    }
    for (const Shape& shape : ShapesOf(row)) {
      json_file << LaunchCase(traffic, row, shape).dump() << std::endl;
    }
  }
  return 0;
}

}  // namespace attnd::kernels::bench
