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

struct Bytes {
  double again, asked;
};

Bytes BytesOf(int num_heads, int num_kv_heads, std::int64_t tokens, bool causal, double cache) {
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
  return {RereadKvBytes(params, plan, kBlockRows, kResident, cache),
          AskedKvBytes(params, plan, kBlockRows)};
}
double Reread(int num_heads, int num_kv_heads, std::int64_t tokens, bool causal, double cache) {
  return BytesOf(num_heads, num_kv_heads, tokens, causal, cache).again;
}

TEST(CudaPrefillTrafficTest, OneWaveReadsNothingAgain) {
  EXPECT_EQ(Reread(1, 1, kResident * kBlockRows, false, 0), 0);
  EXPECT_EQ(Reread(1, 1, kResident * kBlockRows, true, 0), 0);
}

TEST(CudaPrefillTrafficTest, AHeadBeyondTheCacheIsReadOnceAWave) {
  const std::int64_t tokens = 2 * kResident * kBlockRows;  // 33 MiB, and 16.5 MiB of q and o a wave
  EXPECT_EQ(Reread(1, 1, tokens, false, kCache), kKeyBytes * tokens);
  EXPECT_EQ(Reread(1, 1, tokens, false, 3 * kCache), 0);
}

// What has passed since the first wave, its own K, V, q and o, is just what the cache holds.
TEST(CudaPrefillTrafficTest, HalfIsFoundWhereAsMuchHasPassedAsTheCacheHolds) {
  const std::int64_t tokens = 2 * kResident * kBlockRows;
  const double passed = kKeyBytes * tokens + 2.0 * kResident * kBlockRows * 128 * 2;
  EXPECT_NEAR(Reread(1, 1, tokens, false, passed), kKeyBytes * tokens / 2, 1);
}

TEST(CudaPrefillTrafficTest, EveryTileAsksForTheKeysThatItSees) {
  const std::int64_t tokens = 4 * kBlockRows;
  EXPECT_EQ(BytesOf(2, 1, tokens, false, 0).asked, 2 * 4 * kKeyBytes * tokens);
  EXPECT_EQ(BytesOf(2, 1, tokens, true, 0).asked, 2 * (1 + 2 + 3 + 4) * kKeyBytes * kBlockRows);
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
