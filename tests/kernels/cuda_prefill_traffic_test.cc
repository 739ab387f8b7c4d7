// Which keys a prefill launch reads again, counted by hand: pure host code, no device.
#include "kernels/cuda/prefill_traffic.h"

#include <gtest/gtest.h>

#include <vector>

namespace attnd::kernels {
namespace {

constexpr int kBlockRows = 128;
constexpr int kMultiprocessors = 132;
constexpr int kResident = 264;
constexpr double kKeyBytes = 2.0 * 128 * 2;  // K and V of one head, BF16
constexpr double kCache = 25.0 * (1 << 20);

double Reread(int num_heads, int num_kv_heads, std::int64_t tokens, bool causal, double cache) {
  AttentionSequence sequence;
  sequence.query_length = static_cast<std::int32_t>(tokens);
  sequence.kv_length = tokens;
  sequence.causal = causal;
  AttentionParams params;
  params.data_type = params.kv_data_type = DataType::kBf16;
  params.num_heads = num_heads;
  params.num_kv_heads = num_kv_heads;
  params.head_dim = 128;
  params.sequences = &sequence;
  params.num_sequences = 1;
  const PrefillPlan plan = PlanPrefill(params, kBlockRows, kMultiprocessors);
  return RereadKvBytes(params, plan, kBlockRows, kResident, cache);
}

TEST(CudaPrefillTrafficTest, OneWaveReadsNothingAgain) {
  EXPECT_EQ(Reread(1, 1, kResident * kBlockRows, false, 0), 0);
  EXPECT_EQ(Reread(1, 1, kResident * kBlockRows, true, 0), 0);
}

TEST(CudaPrefillTrafficTest, AHeadBeyondTheCacheIsReadOnceAWave) {
  const std::int64_t tokens = 2 * kResident * kBlockRows;  // 33 MiB
  EXPECT_EQ(Reread(1, 1, tokens, false, kCache), kKeyBytes * tokens);
  EXPECT_EQ(Reread(1, 1, tokens, false, 2 * kCache), 0);
}

// Longest tiles first: the second wave ends where the first tile of the first wave began.
TEST(CudaPrefillTrafficTest, ACausalWaveReadsOnlyWhatItsTilesSee) {
  const std::int64_t tokens = 2 * kResident * kBlockRows;
  EXPECT_EQ(Reread(1, 1, tokens, true, kCache), kKeyBytes * tokens / 2);
}

TEST(CudaPrefillTrafficTest, HeadsOfAGroupReadTheirKeysTogether) {
  const std::int64_t tokens = kResident / 4 * kBlockRows;  // four heads a wave
  EXPECT_EQ(Reread(4, 1, tokens, false, 0), 0);
  EXPECT_EQ(Reread(16, 2, tokens, false, 0), 2 * kKeyBytes * tokens);
  EXPECT_EQ(Reread(16, 2, tokens, false, 2 * kCache), 0);
}

}  // namespace
}  // namespace attnd::kernels
