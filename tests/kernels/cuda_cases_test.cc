// What only a card shows: whose code runs, re-layout, large tensors, neighbours, graphs.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/element.h"
#include "kernels/cuda/cuda_kernel_table.h"
#include "kernels/cuda_kernels.h"
#include "kernels/reference/attention_reference.h"
#include "tests/kernels/every_row.h"
#include "tests/support/random_tensors.h"

namespace attnd {
namespace {

using kernels::DataType;
using kernels::LaunchStatus;

kernels::DeviceLimits Card() {
  kernels::DeviceLimits limits;
  limits.kind = kernels::DeviceKind::kCuda;
  limits.compute_capability = 80;
  cudaDeviceGetAttribute(&limits.num_threads, cudaDevAttrMultiProcessorCount, 0);
  return limits;
}

struct FreeDevice {
  void operator()(std::byte* memory) const { cudaFree(memory); }
};
using DeviceBytes = std::unique_ptr<std::byte, FreeDevice>;

DeviceBytes Allocate(std::int64_t bytes) {
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, static_cast<std::size_t>(bytes)), cudaSuccess);
  return DeviceBytes(static_cast<std::byte*>(memory));
}

// The linker merges equal names silently: then one folder's code would answer for another's.
TEST(CudaCasesTest, EveryRowRunsTheCodeOfItsFolder) {
  int major = 0;
  int minor = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
  ASSERT_EQ(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), cudaSuccess);
  const int card = 10 * major + minor;
  for (const kernels::CudaKernelRow& row : kernels::CudaKernelTable()) {
    if (row.launch == nullptr || card < row.first_cc) continue;
    cudaFuncAttributes attributes{};
    ASSERT_EQ(row.prepare(&attributes), cudaSuccess) << row.name;
    const std::string name = row.name;
    if (name.starts_with("any/")) continue;
    const int folder = name.starts_with("sm75/") ? 75 : 80;
    EXPECT_EQ(attributes.ptxVersion, folder) << name;
    // Machine code where the major version is the card's, else the driver compiled the PTX for it.
    EXPECT_EQ(attributes.binaryVersion, major == folder / 10 ? folder : card) << name;
  }
}

TEST(CudaCasesTest, RowsAndAddressesOfAnyAlignment) {
  for (const DataType type : kEveryType) {
    for (const int padding : {1, 3, 4}) {
      for (const bool heads_first : {false, true}) {
        const ProblemShape shape{.type = type,
                                 .num_heads = 4,
                                 .num_kv_heads = 2,
                                 .head_dim = 64,
                                 .row_padding = padding,
                                 .heads_first = heads_first};
        ProblemSequence sequence = SeededSequence(shape, 70, 150, 81, 1);
        sequence.causal = true;
        AttentionProblem problem(shape, {sequence, SeededSequence(shape, 1, 33, 82, 1)});
        ExpectEveryRowRight(problem);
      }
    }
  }
}

TEST(CudaCasesTest, ANonFiniteTileOfAnUnalignedCallIsComputedAgain) {
  const ProblemShape shape{
      .type = DataType::kFp16, .num_heads = 2, .num_kv_heads = 1, .head_dim = 100};
  ProblemSequence sequence = SeededSequence(shape, 140, 140, 83, 1);
  sequence.causal = true;
  AttentionProblem problem(shape, {sequence});
  problem.SetValue(0, 70, 0, 99, std::numeric_limits<float>::quiet_NaN());
  ExpectEveryRowRight(problem);
}

// Growing a neighbour must not move a sequence's answer; under batch_invariant not one bit of it.
TEST(CudaCasesTest, ANeighboursLengthMovesNoBitUnderBatchInvariant) {
  const ProblemShape shape{.type = DataType::kBf16,
                           .num_heads = 14,
                           .num_kv_heads = 2,
                           .head_dim = 64,
                           .page_tokens = 16};
  ProblemSequence victim = SeededSequence(shape, 1, 19802, 84, 1);
  victim.causal = true;
  std::vector<std::byte> first;
  for (int neighbour = 1; neighbour <= 40; neighbour += 3) {
    ProblemSequence other = SeededSequence(shape, 1, 9 * neighbour, 85, 1);
    AttentionProblem problem(shape, {victim, other});
    const kernels::KernelRow& row = *kernels::FindKernelByName("sm80/decode_mma_bf16_d64");
    if (neighbour == 1) {
      ASSERT_EQ(CheckRow(problem, row, {.plan = {.batch_invariant = true}}), "");
    }
    ASSERT_EQ(problem.Run(row, {.plan = {.batch_invariant = true}}).status, LaunchStatus::kOk);
    if (first.empty()) first = problem.OutputBits(0);
    EXPECT_EQ(problem.OutputBits(0), first) << "neighbour of " << 9 * neighbour;
  }
}

// 1600 x 16 x 729 x 72 in FP16: 2.7 GB a tensor. Members around 2^31 bytes against float64, the
// memory around o untouched.
TEST(CudaCasesTest, TensorsBeyond31BitsOfBytes) {
  constexpr int kBatch = 1600;
  constexpr int kHeads = 16;
  constexpr int kTokens = 729;
  constexpr int kDim = 72;
  constexpr std::int64_t kMember = std::int64_t{kTokens} * kHeads * kDim;  // elements
  constexpr std::int64_t kGuard = 1 << 20;
  const ProblemShape shape{
      .type = DataType::kFp16, .num_heads = kHeads, .num_kv_heads = kHeads, .head_dim = kDim};
  std::size_t free = 0;
  std::size_t total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  if (free < std::size_t{14} << 30) GTEST_SKIP() << "needs 14 GiB of device memory";
  const ProblemSequence sequence = SeededSequence(shape, kTokens, kTokens, 28, 1);
  std::vector<std::uint16_t> member(kMember);
  const auto fill = [&](std::byte* tensor, const std::vector<float>& values) {
    for (std::int64_t i = 0; i < kMember; ++i) {
      kernels::StoreElement(member.data(), shape.type, i, values[static_cast<std::size_t>(i)]);
    }
    ASSERT_EQ(cudaMemcpy(tensor, member.data(), kMember * 2, cudaMemcpyHostToDevice), cudaSuccess);
    for (std::int64_t done = 1; done < kBatch; done *= 2) {
      const std::int64_t more = std::min<std::int64_t>(done, kBatch - done);
      ASSERT_EQ(cudaMemcpy(tensor + done * kMember * 2, tensor, more * kMember * 2,
                           cudaMemcpyDeviceToDevice),
                cudaSuccess);
    }
  };
  const DeviceBytes q = Allocate(kBatch * kMember * 2);
  const DeviceBytes k = Allocate(kBatch * kMember * 2);
  const DeviceBytes v = Allocate(kBatch * kMember * 2);
  const DeviceBytes o = Allocate(kBatch * kMember * 2 + 2 * kGuard);
  fill(q.get(), sequence.q);
  fill(k.get(), sequence.k);
  fill(v.get(), sequence.v);
  AttentionProblem near(shape, {sequence});
  std::vector<kernels::AttentionSequence> sequences(kBatch, near.params().sequences[0]);
  for (std::int64_t i = 0; i < kBatch; ++i) {
    kernels::AttentionSequence& member_of = sequences[static_cast<std::size_t>(i)];
    member_of.q = q.get() + i * kMember * 2;
    member_of.kv.k = k.get() + i * kMember * 2;
    member_of.kv.v = v.get() + i * kMember * 2;
    member_of.o = o.get() + kGuard + i * kMember * 2;
    member_of.lse = nullptr;
  }
  kernels::AttentionParams params = near.params();
  params.sequences = sequences.data();
  params.num_sequences = kBatch;
  const std::vector<double>& expected = near.Reference(0).o;
  for (const char* name : {"sm80/prefill_fp16_d128", "sm75/prefill_fp16_d128"}) {
    ASSERT_EQ(cudaMemset(o.get(), 0xFF, kBatch * kMember * 2 + 2 * kGuard), cudaSuccess);
    const kernels::KernelRow& row = *kernels::FindKernelByName(name);
    ASSERT_EQ(kernels::RunCudaAttention(row, params, Card(), {}, nullptr).status,
              LaunchStatus::kOk);
    for (const std::int64_t i : {0, 1278, 1279, 1599}) {
      ASSERT_EQ(cudaMemcpy(member.data(), o.get() + kGuard + i * kMember * 2, kMember * 2,
                           cudaMemcpyDeviceToHost),
                cudaSuccess);
      for (std::int64_t e = 0; e < kMember; ++e) {
        ASSERT_NEAR(kernels::LoadElement(member.data(), shape.type, e),
                    expected[static_cast<std::size_t>(e)], 1.5e-3)
            << name << ", member " << i << ", element " << e;
      }
    }
    std::vector<std::uint8_t> guard(kGuard);
    for (const std::int64_t at : {std::int64_t{0}, kGuard + kBatch * kMember * 2}) {
      ASSERT_EQ(cudaMemcpy(guard.data(), o.get() + at, kGuard, cudaMemcpyDeviceToHost),
                cudaSuccess);
      EXPECT_TRUE(std::all_of(guard.begin(), guard.end(), [](int b) { return b == 0xFF; })) << name;
    }
  }
}

// A plan is captured once and replayed with other values and another upload.
TEST(CudaCasesTest, ACapturedLaunchReplaysWithOtherValues) {
  constexpr int kSequences = 3;
  constexpr int kKeys = 700;
  const ProblemShape shape{
      .type = DataType::kBf16, .num_heads = 8, .num_kv_heads = 2, .head_dim = 128};
  const std::int64_t q_bytes = 8 * 128 * 2;
  const std::int64_t kv_bytes = std::int64_t{kKeys} * 2 * 128 * 2;
  const DeviceBytes q = Allocate(kSequences * q_bytes), o = Allocate(kSequences * q_bytes);
  const DeviceBytes k = Allocate(kSequences * kv_bytes), v = Allocate(kSequences * kv_bytes);
  AttentionProblem near(shape, {SeededSequence(shape, 1, kKeys, 90, 1)});
  std::vector<kernels::AttentionSequence> sequences(kSequences, near.params().sequences[0]);
  for (int i = 0; i < kSequences; ++i) {
    sequences[i].q = q.get() + i * q_bytes;
    sequences[i].o = o.get() + i * q_bytes;
    sequences[i].lse = nullptr;
    sequences[i].kv.k = k.get() + i * kv_bytes;
    sequences[i].kv.v = v.get() + i * kv_bytes;
  }
  kernels::AttentionParams params = near.params();
  params.sequences = sequences.data();
  params.num_sequences = kSequences;
  const kernels::KernelRow& row = *kernels::FindKernelByName("sm80/decode_mma_bf16_d128");
  ASSERT_EQ(kernels::PrepareCudaRow(row), LaunchStatus::kOk);
  const kernels::CudaPlan plan = kernels::PlanCudaAttention(row, params, Card(), {});
  ASSERT_NE(plan.attention.row, nullptr);
  const DeviceBytes workspace = Allocate(plan.attention.workspace_bytes);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(kernels::LaunchCudaAttention(plan, workspace.get(), stream), LaunchStatus::kOk);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
  for (const std::uint64_t seed : {91, 95}) {
    std::vector<ProblemSequence> values;
    for (int i = 0; i < kSequences; ++i) {
      values.push_back(SeededSequence(shape, 1, kKeys, seed + i, 1));
      values.back().scale = 0.05F * static_cast<float>(i + 1);
    }
    AttentionProblem problem(shape, values);
    for (int i = 0; i < kSequences; ++i) {
      const kernels::AttentionSequence& from = problem.params().sequences[i];
      sequences[i].softmax_scale = from.softmax_scale;
      const auto copy = [&](const void* to, const void* source, std::int64_t bytes) {
        ASSERT_EQ(cudaMemcpy(const_cast<void*>(to), source, bytes, cudaMemcpyHostToDevice),
                  cudaSuccess);
      };
      copy(sequences[i].q, from.q, q_bytes);
      copy(sequences[i].kv.k, from.kv.k, kv_bytes);
      copy(sequences[i].kv.v, from.kv.v, kv_bytes);
    }
    std::vector<std::byte> upload(plan.upload_bytes);
    kernels::EncodeCudaAttention(plan, params, workspace.get(), upload.data());
    ASSERT_EQ(cudaMemcpy(workspace.get(), upload.data(), upload.size(), cudaMemcpyHostToDevice),
              cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(replay, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    for (int i = 0; i < kSequences; ++i) {
      std::vector<std::uint16_t> got(8 * 128);
      ASSERT_EQ(cudaMemcpy(got.data(), sequences[i].o, q_bytes, cudaMemcpyDeviceToHost),
                cudaSuccess);
      const std::vector<double>& expected = problem.Reference(i).o;
      for (int e = 0; e < 8 * 128; ++e) {
        ASSERT_NEAR(kernels::LoadElement(got.data(), shape.type, e), expected[e], 8e-3)
            << "sequence " << i;
      }
    }
  }
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST(CudaCasesTest, NaiveRunsWhereCublasIs) {
  const char* fault = kernels::CudaNaiveFault();
  if (fault != nullptr) GTEST_SKIP() << fault;
  const ProblemShape shape{.type = DataType::kBf16,
                           .num_heads = 4,
                           .num_kv_heads = 2,
                           .head_dim = 64,
                           .page_tokens = 16};
  // Lengths that go together and lengths that do not.
  AttentionProblem problem(
      shape, {SeededSequence(shape, 3, 100, 86, 1), SeededSequence(shape, 4, 90, 87, 1),
              SeededSequence(shape, 200, 300, 88, 1), SeededSequence(shape, 1, 5, 89, 1)});
  EXPECT_EQ(CheckRow(problem, *kernels::FindKernelByName("naive/bf16")), "");
}

}  // namespace
}  // namespace attnd
