// The CUDA rows of the table, read without a device.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kernels/attention_kernels.h"
#include "kernels/cuda/cuda_kernel_table.h"
#include "kernels/cuda/cuda_rows.h"

namespace attnd::kernels {
namespace {

DeviceLimits Card(int compute_capability) {
  return {DeviceKind::kCuda, compute_capability, CpuTarget::kAuto, 132};
}

std::string Found(Operation operation, DataType type, int head_dim, std::uint32_t features,
                  int compute_capability) {
  const KernelRow* row =
      FindKernel({operation, type, type, head_dim, features}, Card(compute_capability));
  return row == nullptr ? "none" : row->name;
}

TEST(CudaKernelTableTest, NamesAreUniqueAndBeginWithTheirFolder) {
  std::set<std::string> names;
  for (const CudaKernelRow& row : CudaKernelTable()) {
    const std::string name = row.name;
    EXPECT_TRUE(names.insert(name).second) << name;
    const std::string folder = name.substr(0, name.find('/'));
    EXPECT_TRUE((std::set<std::string>{"sm80", "sm75", "any", "naive"}.contains(folder))) << name;
    EXPECT_EQ(row.first_cc, folder == "sm80" ? 80 : 75) << name;
    EXPECT_NE(row.prepare, nullptr);
    const bool upkeep =
        row.operation == Operation::kAppend || row.operation == Operation::kMergeStates;
    const bool naive = row.operation == Operation::kNaive;
    EXPECT_EQ(row.launch != nullptr, !upkeep && !naive) << name;
    EXPECT_EQ(row.launch_naive != nullptr, naive) << name;
    EXPECT_EQ(row.block_rows > 0, row.launch != nullptr) << name;
    if (row.launch != nullptr) {
      EXPECT_NE(name.find("_d" + std::to_string(row.head_dim)), std::string::npos) << name;
    }
  }
}

TEST(CudaKernelTableTest, ThePublicTableHoldsEveryRow) {
  ASSERT_EQ(CudaRows().size(), CudaKernelTable().size());
  for (const CudaKernelRow& row : CudaKernelTable()) {
    const KernelRow* found = FindKernelByName(row.name);
    ASSERT_NE(found, nullptr) << row.name;
    EXPECT_EQ(found->device, DeviceKind::kCuda);
    EXPECT_EQ(found->max_head_dim, row.head_dim);
    EXPECT_EQ(found->features, row.features);
    EXPECT_EQ(found->launch, nullptr) << row.name << " is launched through cuda_kernels.h";
  }
}

TEST(CudaKernelTableTest, TheSmallestBucketAndTheFewestFeaturesAreChosen) {
  const std::uint32_t causal = kFeatureCausal | kFeaturePaged;
  EXPECT_EQ(Found(Operation::kPrefill, DataType::kBf16, 64, causal, 90), "sm80/prefill_bf16_d64");
  EXPECT_EQ(Found(Operation::kPrefill, DataType::kFp16, 65, causal, 80), "sm80/prefill_fp16_d128");
  EXPECT_EQ(Found(Operation::kPrefill, DataType::kFp16, 256, causal, 75), "sm75/prefill_fp16_d256");
  EXPECT_EQ(Found(Operation::kPrefill, DataType::kFp16, 8, kFeatureSinks, 75),
            "sm75/prefill_fp16_d64_all");
  EXPECT_EQ(Found(Operation::kDecode, DataType::kBf16, 128, kFeatureSoftCap | causal, 90),
            "sm80/decode_mma_bf16_d128");
  EXPECT_EQ(Found(Operation::kNaive, DataType::kBf16, 128, kFeatureBias, 75), "naive/bf16");
}

TEST(CudaKernelTableTest, NoTypeIsRefused) {
  for (const int capability : {75, 80, 86, 89, 90, 120}) {
    EXPECT_EQ(Found(Operation::kPrefill, DataType::kFp32, 128, 0, capability),
              "any/prefill_simt_fp32_d128");
    EXPECT_EQ(Found(Operation::kDecode, DataType::kFp32, 256, 0, capability),
              "any/decode_dot_fp32_d256");
  }
  EXPECT_EQ(Found(Operation::kPrefill, DataType::kBf16, 64, 0, 75), "any/prefill_simt_bf16_d64");
  EXPECT_EQ(Found(Operation::kDecode, DataType::kBf16, 64, 0, 75), "any/decode_dot_bf16_d64");
  EXPECT_EQ(Found(Operation::kDecode, DataType::kFp16, 64, 0, 74), "none");
}

}  // namespace
}  // namespace attnd::kernels
