// Order of a prefill launch: pure host code, no device.
#include <gtest/gtest.h>

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
  const std::vector<PrefillTask> tasks = PlanPrefillTasks(batch.params, 128);
  std::set<std::pair<int, int>> seen;
  for (const PrefillTask& task : tasks) {
    EXPECT_TRUE(seen.emplace(task.sequence, task.query_tile).second);
  }
  EXPECT_EQ(seen.size(), 1U + 8U + 0U + 2U);
  EXPECT_EQ(tasks.front().sequence, 3);
  EXPECT_EQ(tasks.front().query_tile, 1);
  EXPECT_EQ(tasks.back().sequence, 0);
}

}  // namespace
}  // namespace attnd::kernels
