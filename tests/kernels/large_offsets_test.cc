// Tensors whose offsets pass 32 bits, on every CPU row: the buffers are sparse host memory.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <memory>

#include "kernels/cpu/element.h"
#include "tests/support/attention_problem.h"

namespace attnd {
namespace {

using kernels::DataType;
using kernels::LaunchStatus;

// Address space that costs memory only where it is touched.
class SparseBytes {
 public:
  explicit SparseBytes(std::size_t size)
      : size_(size),
        data_(mmap(nullptr, size, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~SparseBytes() { munmap(data_, size_); }
  SparseBytes(const SparseBytes&) = delete;
  SparseBytes& operator=(const SparseBytes&) = delete;
  bool ok() const { return data_ != MAP_FAILED; }
  std::byte* data() { return static_cast<std::byte*>(data_); }

 private:
  std::size_t size_;
  void* data_;
};

// Tensors whose offsets pass 2^31 elements and 2^32 bytes, contiguous and paged.
TEST(LargeOffsetsTest, OffsetsBeyond32Bits) {
  constexpr int kTokens = 80;
  constexpr int kDim = 72;
  constexpr std::int64_t kStride = std::int64_t{1} << 25;  // elements from token to token
  constexpr auto kBytes = static_cast<std::size_t>(kTokens * kStride * 2);
  const ProblemShape shape{.type = DataType::kFp16, .head_dim = kDim};
  ProblemSequence sequence = SeededSequence(shape, kTokens, kTokens, 28, 1);
  AttentionProblem near(shape, {sequence});
  SparseBytes q(kBytes), k(kBytes), v(kBytes), o(kBytes), pool(kBytes);
  ASSERT_TRUE(q.ok() && k.ok() && v.ok() && o.ok() && pool.ok());
  kernels::AttentionSequence far = near.params().sequences[0];
  for (std::int64_t token = 0; token < kTokens; ++token) {
    for (int dim = 0; dim < kDim; ++dim) {
      const std::int64_t from = token * kDim + dim;
      const std::int64_t to = token * kStride + dim;
      kernels::StoreElement(q.data(), shape.type, to, sequence.q[from]);
      kernels::StoreElement(k.data(), shape.type, to, sequence.k[from]);
      kernels::StoreElement(v.data(), shape.type, to, sequence.v[from]);
    }
  }
  far.q = q.data();
  far.o = o.data();
  far.q_token_stride = far.o_token_stride = kStride;
  far.kv.k = k.data();
  far.kv.v = v.data();
  far.kv.k_token_stride = far.kv.v_token_stride = kStride;
  kernels::AttentionParams params = near.params();
  params.sequences = &far;

  // One token a page, the pages as far apart.
  kernels::AttentionSequence paged = far;
  std::vector<std::uint32_t> table;
  for (int token = 0; token < kTokens; ++token) {
    table.push_back(static_cast<std::uint32_t>(token * (kStride * 2 / kernels::kPageUnitBytes)));
  }
  paged.kv = {.page_table = table.data()};
  kernels::AttentionParams paged_params = params;
  paged_params.sequences = &paged;
  paged_params.page_layout = {shape.type, 1, 1, kDim, kernels::PaddedHeadDim(kDim)};
  paged_params.pool = pool.data();
  paged_params.pool_bytes = static_cast<std::int64_t>(kBytes);
  std::vector<std::uint16_t> dense_k(kTokens * kDim), dense_v(kTokens * kDim);
  for (int i = 0; i < kTokens * kDim; ++i) {
    kernels::StoreElement(dense_k.data(), shape.type, i, sequence.k[i]);
    kernels::StoreElement(dense_v.data(), shape.type, i, sequence.v[i]);
  }
  kernels::AppendSequence append{dense_k.data(), dense_v.data(), kTokens, 0, 0, table.data(), {}};
  kernels::CpuExecutor executor(2);
  ASSERT_EQ(
      kernels::LaunchAppend(
          {&append, 1, paged_params.page_layout, pool.data(), paged_params.pool_bytes}, executor)
          .status,
      LaunchStatus::kOk);

  for (const auto* row : AttentionRows(near)) {
    ASSERT_EQ(near.Run(*row).status, LaunchStatus::kOk);
    const std::vector<double> expected = near.Output(0).o;
    for (const kernels::AttentionParams* far_params : {&params, &paged_params}) {
      kernels::DeviceLimits limits;
      limits.num_threads = 2;
      const kernels::LaunchPlan plan = kernels::PlanAttention(*row, *far_params, limits, {});
      std::vector<std::byte> workspace(plan.workspace_bytes + 128);
      void* aligned = workspace.data();
      std::size_t space = workspace.size();
      std::align(128, plan.workspace_bytes, aligned, space);
      ASSERT_EQ(
          kernels::Launch(plan, *far_params, static_cast<std::byte*>(aligned), executor).status,
          LaunchStatus::kOk);
      for (std::int64_t i = 0; i < kTokens * kDim; ++i) {
        const double got =
            kernels::ReferenceElement(o.data(), shape.type, i / kDim * kStride + i % kDim);
        ASSERT_NEAR(got, expected[i], 4 * UnitRoundoff(shape.type)) << row->name;
      }
    }
  }
}

}  // namespace
}  // namespace attnd
