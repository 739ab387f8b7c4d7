// Order of a prefill launch: pure host code, no device.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "kernels/cuda/prefill_plan.h"

namespace attnd::kernels {
namespace {

struct Batch {
  std::vector<AttentionSequence> sequences;
  AttentionParams params;

  Batch(int num_heads, int num_kv_heads) {
    params.num_heads = num_heads;
    params.num_kv_heads = num_kv_heads;
    params.head_dim = 128;
  }
  AttentionSequence& Add(int query_length, std::int64_t kv_length) {
    AttentionSequence sequence;
    sequence.query_length = query_length;
    sequence.kv_length = kv_length;
    sequence.query_position = kv_length - query_length;
    sequence.causal = true;
    sequences.push_back(sequence);
    params.sequences = sequences.data();
    params.num_sequences = static_cast<std::int32_t>(sequences.size());
    return sequences.back();
  }
};

TEST(CudaPrefillPlanTest, CoversEveryTileOnceLongestFirst) {
  Batch batch(8, 8);
  batch.Add(100, 100);
  batch.Add(1000, 1000);
  batch.Add(0, 500);
  batch.Add(129, 4000);
  const std::vector<PrefillTask> tasks = PlanPrefill(batch.params, 128, 132).tasks;
  std::set<std::pair<int, int>> seen;
  for (const PrefillTask& task : tasks) {
    EXPECT_TRUE(seen.emplace(task.sequence, task.query_tile).second);
  }
  EXPECT_EQ(seen.size(), 1U + 8U + 0U + 2U);
  EXPECT_EQ(tasks.front().sequence, 3);
  EXPECT_EQ(tasks.front().query_tile, 1);
  EXPECT_EQ(tasks.back().sequence, 0);
}

TEST(CudaPrefillPlanTest, TheLastHeadsFillTheCardTogether) {
  for (const auto& [heads, tail] : {std::pair{1, 1}, {3, 3}, {5, 5}, {16, 5}, {37, 5}}) {
    Batch batch(heads, heads);
    for (int i = 0; i < 8; ++i) batch.Add(2048, 2048);  // 128 tasks; 5 x 128 >= 4 x 132
    EXPECT_EQ(PlanPrefill(batch.params, 128, 132).tail_heads, tail) << heads;
  }
}

TEST(CudaPrefillPlanTest, TilesOfASequenceAreNeighboursUntilTheTail) {
  Batch batch(16, 16);
  for (int i = 0; i < 8; ++i) batch.Add(2048, 2048);
  const PrefillPlan plan = PlanPrefill(batch.params, 128, 132);
  ASSERT_EQ(plan.tasks.size(), 128U);
  for (std::size_t i = 0; i < 128; ++i) {
    EXPECT_EQ(plan.tasks[i].sequence, static_cast<int>(i / 16));
    EXPECT_EQ(plan.tasks[i].query_tile, static_cast<int>(15 - i % 16));
  }
}

TEST(CudaPrefillPlanTest, TheTailEndsOnItsShortestTiles) {
  for (const int count : {8, 300}) {
    Batch batch(2, 2);
    for (int i = 0; i < count; ++i) batch.Add(1024, 1024);
    const PrefillPlan plan = PlanPrefill(batch.params, 128, 132);
    ASSERT_EQ(plan.tail_order.size(), plan.tasks.size());
    EXPECT_EQ(std::set<int>(plan.tail_order.begin(), plan.tail_order.end()).size(),
              plan.tasks.size());
    const std::size_t tail = std::min<std::size_t>(plan.tasks.size(), 4 * 132);
    for (std::size_t i = 0; i + tail < plan.tasks.size(); ++i) {
      EXPECT_EQ(plan.tail_order[i], static_cast<int>(i));
    }
    for (std::size_t i = plan.tasks.size() - tail + 1; i < plan.tasks.size(); ++i) {
      const auto tile = [&](std::size_t at) {
        return plan.tasks[static_cast<std::size_t>(plan.tail_order[at])].query_tile;
      };
      EXPECT_GE(tile(i - 1), tile(i));
    }
  }
}

TEST(CudaPrefillPlanTest, WindowedTilesCountTheKeysInsideTheWindow) {
  Batch batch(1, 1);
  batch.Add(1024, 8192).window_left = 100;
  batch.Add(512, 4096);
  const PrefillPlan plan = PlanPrefill(batch.params, 128, 1);
  EXPECT_EQ(plan.tasks.front().sequence, 1);
  EXPECT_EQ(plan.tasks.back().sequence, 0);
}

}  // namespace
}  // namespace attnd::kernels
