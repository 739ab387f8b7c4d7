// How decode batches are cut into CTAs: pure host code, no device.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/decode_plan.h"

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

DecodePlanOptions H200() { return {.num_multiprocessors = 132}; }

// Every visible key once, in ascending order, with the splits' numbers in that order.
void ExpectSplitsCover(const DecodePlan& plan, int sequence, int first_key, int kv_length) {
  std::vector<DecodeTask> tasks;
  for (const DecodeTask& task : plan.tasks) {
    if (task.sequence == sequence) tasks.push_back(task);
  }
  std::sort(tasks.begin(), tasks.end(),
            [](const DecodeTask& a, const DecodeTask& b) { return a.split < b.split; });
  ASSERT_EQ(static_cast<int>(tasks.size()), plan.sequences[sequence].num_splits);
  int next = first_key;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    EXPECT_EQ(tasks[i].split, static_cast<int>(i));
    EXPECT_EQ(tasks[i].first_key, next);
    EXPECT_EQ(tasks[i].first_key % kDecodeStepTokens, 0);
    next = tasks[i].last_key;
  }
  EXPECT_GE(next, kv_length);
  EXPECT_LT(next - kv_length, kDecodeStepTokens);
}

TEST(CudaDecodePlanTest, SplitsCoverEveryKeyOnce) {
  Batch batch(32, 8);
  for (const int length : {1, 63, 64, 65, 1000, 8192, 100000}) batch.Add(1, length);
  const DecodePlan plan = PlanDecode(batch.params, H200());
  for (int i = 0; i < batch.params.num_sequences; ++i) {
    ExpectSplitsCover(plan, i, 0, static_cast<int>(batch.sequences[i].kv_length));
  }
}

TEST(CudaDecodePlanTest, StartsAtTheWindow) {
  Batch batch(8, 8);
  batch.Add(1, 10000).window_left = 1000;
  const DecodePlan plan = PlanDecode(batch.params, H200());
  ExpectSplitsCover(plan, 0, (9999 - 1000) / kDecodeStepTokens * kDecodeStepTokens, 10000);
}

TEST(CudaDecodePlanTest, OneLongSequenceFillsTheDevice) {
  Batch batch(32, 8);
  batch.Add(1, 131072);
  const DecodePlan plan = PlanDecode(batch.params, H200());
  EXPECT_GE(plan.max_splits * 8, 100);
}

TEST(CudaDecodePlanTest, ManySequencesAreNotSplit) {
  Batch batch(32, 8);
  for (int i = 0; i < 256; ++i) batch.Add(1, 1024);
  const DecodePlan plan = PlanDecode(batch.params, H200());
  EXPECT_EQ(plan.max_splits, 1);
  EXPECT_EQ(plan.partial_rows, 0);
}

TEST(CudaDecodePlanTest, PartialRowsOfSequencesDoNotOverlap) {
  Batch batch(8, 2);
  batch.Add(3, 50000);
  batch.Add(1, 70000);
  DecodePlanOptions options = H200();
  options.forced_splits = 5;
  const DecodePlan plan = PlanDecode(batch.params, options);
  EXPECT_EQ(plan.sequences[0].first_partial, 0);
  EXPECT_EQ(plan.sequences[1].first_partial, 5 * 3 * 8);
  EXPECT_EQ(plan.partial_rows, 5 * 3 * 8 + 5 * 1 * 8);
  EXPECT_EQ(plan.max_query_rows, 3 * 4);
}

TEST(CudaDecodePlanTest, BatchInvariantSplitsIgnoreTheRestOfTheBatch) {
  DecodePlanOptions options = H200();
  options.batch_invariant = true;
  Batch alone(8, 2);
  alone.Add(1, 5000);
  Batch crowd(8, 2);
  for (int i = 0; i < 40; ++i) crowd.Add(1, 100 + 300 * i);
  crowd.Add(1, 5000);
  const DecodePlan first = PlanDecode(alone.params, options);
  const DecodePlan second = PlanDecode(crowd.params, options);
  EXPECT_EQ(first.sequences[0].num_splits, second.sequences[40].num_splits);
  for (const DecodeTask& task : first.tasks) EXPECT_EQ(task.first_key % kInvariantSplitTokens, 0);
}

TEST(CudaDecodePlanTest, BatchInvariantSplitsStayWhereTheyAreWhenOldPagesGo) {
  DecodePlanOptions options = H200();
  options.batch_invariant = true;
  Batch whole(8, 2);
  AttentionSequence& all = whole.Add(1, 9000);
  all.window_left = 5000;
  const DecodePlan before = PlanDecode(whole.params, options);
  ASSERT_GT(before.sequences[0].num_splits, 3);
  for (const std::int64_t freed : {64, 640, 1024, 3968}) {
    Batch rest(8, 2);
    AttentionSequence& kept = rest.Add(1, 9000 - freed);
    kept.window_left = 5000;
    kept.key_position = freed;
    kept.query_position = 8999;
    const DecodePlan after = PlanDecode(rest.params, options);
    ASSERT_EQ(after.tasks.size(), before.tasks.size()) << freed;
    for (std::size_t i = 0; i < after.tasks.size(); ++i) {
      EXPECT_EQ(after.tasks[i].split, before.tasks[i].split);
      EXPECT_EQ(after.tasks[i].first_key + freed, before.tasks[i].first_key);
      EXPECT_EQ(after.tasks[i].last_key + freed, before.tasks[i].last_key);
    }
  }
}

TEST(CudaDecodePlanTest, ASequenceWithoutKeysStillWritesItsRows) {
  Batch batch(8, 2);
  batch.Add(1, 0);
  const DecodePlan plan = PlanDecode(batch.params, H200());
  ASSERT_EQ(plan.tasks.size(), 1U);
  EXPECT_EQ(plan.tasks[0].first_key, plan.tasks[0].last_key);
}

}  // namespace
}  // namespace attnd::kernels
