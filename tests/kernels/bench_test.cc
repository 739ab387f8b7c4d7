// attnbench's floors and lines, and one short run of the whole path.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "kernels/attention_kernels.h"
#include "kernels/bench/bench_case.h"
#include "kernels/bench/bench_json.h"
#include "kernels/bench/bench_measure.h"
#include "kernels/bench/bench_problem.h"
#include "kernels/bench/bench_report.h"
#include "kernels/bench/cuda_bench_case.h"

namespace attnd::kernels::bench {
namespace {

constexpr CpuCeilings kCeilings{100e9, 200e9, 10e9};

KernelCost Cost(double flops, double read_bytes) {
  KernelCost cost;
  cost.flops = flops;
  cost.min_read_bytes = read_bytes;
  return cost;
}

BenchCase SmallCase() {
  BenchCase bench_case;
  bench_case.query_length = bench_case.kv_length = 100;
  bench_case.num_heads = 4;
  bench_case.num_kv_heads = 2;
  return bench_case;
}

TEST(BenchTest, FloorNamesTheUnitThatBinds) {
  KernelRow row{};
  row.operation = Operation::kPrefill;
  row.cpu_target = CpuTarget::kAvx512;
  EXPECT_STREQ(FloorOf(row, DataType::kFp32, Cost(1e9, 1e6), kCeilings).binding_unit, "fp32_fma");
  EXPECT_DOUBLE_EQ(FloorOf(row, DataType::kFp32, Cost(1e9, 1e6), kCeilings).ms, 10);
  EXPECT_STREQ(FloorOf(row, DataType::kFp32, Cost(1e6, 1e9), kCeilings).binding_unit,
               "memory_read");
  EXPECT_DOUBLE_EQ(FloorOf(row, DataType::kFp32, Cost(1e6, 1e9), kCeilings).ms, 100);
  // BF16 on a target without the dot product is widened to FP32.
  EXPECT_STREQ(FloorOf(row, DataType::kBf16, Cost(1e9, 1e6), kCeilings).binding_unit, "fp32_fma");
  row.cpu_target = CpuTarget::kAvx512Bf16;
  EXPECT_STREQ(FloorOf(row, DataType::kBf16, Cost(1e9, 1e6), kCeilings).binding_unit, "bf16_dot");
  EXPECT_DOUBLE_EQ(FloorOf(row, DataType::kBf16, Cost(1e9, 1e6), kCeilings).ms, 5);
}

TEST(BenchTest, CaseNamesAreUnique) {
  std::set<std::string> names;
  for (const BenchCase& bench_case : AllCases()) {
    EXPECT_TRUE(names.insert(bench_case.Name()).second) << bench_case.Name();
  }
  EXPECT_TRUE(names.count("prefill/bf16/1x4096/h8-8/d64/causal"));
  EXPECT_TRUE(names.count("decode/bf16/16x1+4096/h32-8/d128/causal/p16"));
  EXPECT_TRUE(names.count("decode/bf16/16x1+4096/h32-8/d128/causal/p64/ascending"));
}

TEST(BenchTest, CudaCaseNamesAreUnique) {
  std::set<std::string> names;
  for (const CudaBenchCase& bench_case : AllCudaCases()) {
    EXPECT_TRUE(names.insert(bench_case.Name()).second) << bench_case.Name();
  }
  EXPECT_TRUE(names.count("sm80/decode/bf16/64x1+2048/h32-1/d128/causal/p16"));
}

TEST(BenchTest, PagesAscendWhereTheCaseSaysSo) {
  BenchCase bench_case = SmallCase();
  bench_case.operation = Operation::kDecode;
  bench_case.query_length = 1;
  bench_case.kv_length = 1024;
  bench_case.page_tokens = 16;
  for (const bool ascending : {false, true}) {
    bench_case.ascending_pages = ascending;
    BenchProblem problem(bench_case);
    const std::uint32_t* pages = problem.params().sequences[0].kv.page_table;
    EXPECT_EQ(std::is_sorted(pages, pages + 1024 / 16), ascending);
    EXPECT_EQ(ShapeJson(bench_case)["ascending_pages"], ascending);
  }
}

TEST(BenchTest, FindsAWrongResult) {
  BenchProblem problem(SmallCase());  // o is still zero
  EXPECT_GT(problem.Error(), problem.Tolerance());
}

TEST(BenchTest, MeasuresACaseAndWritesItsLines) {
  DeviceLimits limits;
  limits.num_threads = 2;
  CpuExecutor executor(2);
  MeasureOptions options;
  options.seconds = 0.01;
  options.min_rounds = 3;
  options.block_seconds = 1e-4;
  const CaseResult result = MeasureCase(SmallCase(), limits, executor, kCeilings, options, nullptr);
  EXPECT_LE(result.error, 1e-5);
  EXPECT_GT(result.naive_workspace_bytes, 100 * 100 * 4);

  RunInfo run{"abc", "attnbench", "a \"CPU\"", UtcNow(), "avx2", 2, kCeilings};
  const auto head = nlohmann::json::parse(RunLine(run));
  for (const char* field : {"commit", "command", "device", "date"}) {
    EXPECT_TRUE(head.contains(field)) << field;
  }
  const std::vector<std::string> lines = ResultLines(result, run);
  ASSERT_EQ(lines.size(), 2U);
  for (const std::string& text : lines) {
    const auto line = nlohmann::json::parse(text);
    for (const char* field : {"op", "kernel", "device", "shape", "dtype", "ms", "tflops", "gbps",
                              "floor_ms", "fraction_of_floor", "binding_unit"}) {
      EXPECT_TRUE(line.contains(field)) << field;
    }
    EXPECT_EQ(line["device"], "a \"CPU\"");
    EXPECT_GT(line["ms"].get<double>(), 0);
    EXPECT_NEAR(line["fraction_of_floor"].get<double>(),
                line["floor_ms"].get<double>() / line["ms"].get<double>(), 0.01);
  }
  EXPECT_EQ(nlohmann::json::parse(lines[0])["op"], "prefill");
  EXPECT_TRUE(nlohmann::json::parse(lines[0]).contains("naive_ms"));
  EXPECT_EQ(nlohmann::json::parse(lines[1])["op"], "naive");
}

}  // namespace
}  // namespace attnd::kernels::bench
