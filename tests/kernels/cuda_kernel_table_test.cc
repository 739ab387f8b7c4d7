// The table of CUDA rows, read without a device.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kernels/cuda/cuda_kernel_table.h"

namespace attnd::kernels {
namespace {

TEST(CudaKernelTableTest, NamesAreUniqueAndBeginWithTheirFolder) {
  std::set<std::string> names;
  for (const CudaKernelRow& row : CudaKernelTable()) {
    const std::string name = row.name;
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_TRUE(name.starts_with("sm80/") || name.starts_with("sm75/") || name.starts_with("any/"));
    EXPECT_EQ(row.first_cc, name.starts_with("sm80/") ? 80 : 75) << name;
    EXPECT_NE(name.find("_d" + std::to_string(row.head_dim)), std::string::npos) << name;
    EXPECT_NE(row.launch, nullptr);
    EXPECT_NE(row.prepare, nullptr);
    EXPECT_GT(row.block_rows, 0);
  }
}

}  // namespace
}  // namespace attnd::kernels
