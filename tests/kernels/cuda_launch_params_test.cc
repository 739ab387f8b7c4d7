// How the paged cache is described to kernels: pure host code, no device.
#include <gtest/gtest.h>

#include "kernels/cuda/cuda_launch_params.h"

namespace attnd::kernels {
namespace {

TEST(CudaLaunchParamsTest, RefusesEntriesWhosePageReachesPastThePool) {
  AttentionParams params;
  params.page_layout = {DataType::kBf16, 16, 2, 128, 128};
  const std::int64_t page = params.page_layout.page_bytes();
  params.pool_bytes = 10 * page;
  const PagePool pages = MakePagePool(params);
  EXPECT_EQ(pages.end_entry, (9 * page) / kPageUnitBytes + 1);
  EXPECT_EQ(pages.page_shift, 4);
  EXPECT_EQ(pages.row_bytes, 256);
  params.pool_bytes = page - 1;
  EXPECT_EQ(MakePagePool(params).end_entry, 0U);
}

}  // namespace
}  // namespace attnd::kernels
