// Visible keys and splits: pure functions of shape and options.
#include "kernels/launch_plan.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace attnd::kernels {
namespace {

AttentionSequence Sequence(int query_length, std::int64_t kv_length) {
  AttentionSequence sequence;
  sequence.query_length = query_length;
  sequence.kv_length = kv_length;
  sequence.query_position = kv_length - query_length;
  sequence.causal = true;
  return sequence;
}

AttentionParams Params(const std::vector<AttentionSequence>& sequences, int num_kv_heads) {
  AttentionParams params;
  params.num_heads = params.num_kv_heads = num_kv_heads;
  params.head_dim = 64;
  params.sequences = sequences.data();
  params.num_sequences = static_cast<int>(sequences.size());
  return params;
}

// By asking of every key whether its position is hidden.
KeyRange VisibleByPosition(const AttentionSequence& sequence, std::int64_t row) {
  const std::int64_t p = sequence.query_position + row;
  KeyRange range{0, 0};
  for (std::int64_t key = 0; key < sequence.kv_length; ++key) {
    const std::int64_t j = sequence.key_position + key;
    const bool left_ok = sequence.window_left == kUnlimitedWindow || j >= p - sequence.window_left;
    const bool right_ok = sequence.causal ? j <= p
                                          : sequence.window_right == kUnlimitedWindow ||
                                                j <= p + sequence.window_right;
    if (!left_ok || !right_ok) continue;
    if (range.end == 0) range.begin = key;
    range.end = key + 1;
  }
  return range;
}

TEST(LaunchPlanTest, VisibleKeysFollowFromPositions) {
  for (const bool causal : {false, true}) {
    for (const std::int64_t left : {-1, 0, 1, 5, 40}) {
      for (const std::int64_t right : {-1, 0, 3, 40}) {
        for (const std::int64_t query_position : {-9, 0, 4, 30, 60}) {
          for (const std::int64_t key_position : {0, 7, 25}) {
            AttentionSequence sequence = Sequence(20, 23);
            sequence.causal = causal;
            sequence.window_left = left;
            sequence.window_right = right;
            sequence.query_position = query_position;
            sequence.key_position = key_position;
            KeyRange all{0, 0};
            for (int row = 0; row < 20; ++row) {
              const KeyRange expected = VisibleByPosition(sequence, row);
              const KeyRange got = VisibleKeys(sequence, row);
              ASSERT_EQ(got.begin, expected.begin);
              ASSERT_EQ(got.end, expected.end);
              if (expected.size() == 0) continue;
              if (all.size() == 0) all.begin = expected.begin;
              all.end = expected.end;
            }
            const KeyRange got = VisibleKeys(sequence, 0, 20);
            ASSERT_EQ(got.begin, all.begin);
            ASSERT_EQ(got.end, all.end);
          }
        }
      }
    }
  }
}

TEST(LaunchPlanTest, WindowsOfAnySizeDoNotOverflow) {
  AttentionSequence sequence = Sequence(1, 10);
  sequence.causal = false;
  sequence.window_left = sequence.window_right = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(VisibleKeys(sequence, 0).size(), 10);
}

TEST(LaunchPlanTest, ManyItemsAreNotSplit) {
  const std::vector<AttentionSequence> sequences(64, Sequence(1, 4096));
  EXPECT_EQ(ChooseSplitTokens(Params(sequences, 8), 2, {}), 4096);
}

TEST(LaunchPlanTest, AnItemTakesTheHeadsWhoseRowsFit) {
  const AttentionSequence sequence = Sequence(2, 100);
  AttentionParams params = Params({sequence}, 8);
  params.num_heads = 32;  // 8 rows a KV head
  EXPECT_EQ(DecodeHeadsPerItem(params, sequence, 8), 8);
  EXPECT_EQ(DecodeHeadsPerItem(params, sequence, 3), 3);
  params.num_heads = 128;  // 32 rows
  EXPECT_EQ(DecodeHeadsPerItem(params, sequence, 8), 2);
  params.num_heads = 1024;  // more than fit: one head, in blocks
  EXPECT_EQ(DecodeHeadsPerItem(params, sequence, 8), 1);
}

TEST(LaunchPlanTest, HeadsAreSharedOutWhereSplitsAreTooFew) {
  const std::vector<AttentionSequence> one{Sequence(1, 300)};
  EXPECT_EQ(ChooseHeadsPerItem(Params(one, 8), 1024, 2, {}), 2);
  EXPECT_EQ(ChooseHeadsPerItem(Params(one, 8), 1024, 16, {}), 1);
  const std::vector<AttentionSequence> many(40, Sequence(1, 300));
  EXPECT_EQ(ChooseHeadsPerItem(Params(many, 8), 1024, 2, {}), 8);
}

TEST(LaunchPlanTest, OneLongSequenceIsSplitOverTheThreads) {
  const std::vector<AttentionSequence> sequences{Sequence(1, 32768)};
  const AttentionParams params = Params(sequences, 1);
  const std::int64_t tokens = ChooseSplitTokens(params, 4, {});
  EXPECT_GE(SplitSequence(sequences[0], tokens, {}).num_splits, 4);
  EXPECT_GE(tokens, kMinSplitTokens);
  EXPECT_EQ(ChooseSplitTokens(params, 1, {}), 32768);  // one thread: splitting only costs
}

TEST(LaunchPlanTest, ShortSequencesAreNotSplit) {
  const std::vector<AttentionSequence> sequences{Sequence(1, 400)};
  EXPECT_EQ(ChooseSplitTokens(Params(sequences, 1), 64, {}), 400);
}

TEST(LaunchPlanTest, ForcedSplitsAreObeyed) {
  const std::vector<AttentionSequence> sequences{Sequence(1, 1000)};
  for (const int splits : {1, 2, 3, 7, 1000}) {
    const PlanOptions options{.forced_splits = splits};
    const std::int64_t tokens = ChooseSplitTokens(Params(sequences, 1), 2, options);
    EXPECT_EQ(SplitSequence(sequences[0], tokens, options).num_splits, splits);
  }
}

TEST(LaunchPlanTest, SplitsCoverTheVisibleKeysOnceInOrder) {
  for (const bool invariant : {false, true}) {
    for (const std::int64_t key_position : {0, 100, 1023, 1024}) {
      for (const std::int64_t window : {std::int64_t{-1}, std::int64_t{3000}}) {
        AttentionSequence sequence = Sequence(3, 5000);
        sequence.key_position = key_position;
        sequence.query_position += key_position;
        sequence.window_left = window;
        const PlanOptions options{.batch_invariant = invariant};
        const std::int64_t tokens = invariant ? kInvariantSplitTokens : 700;
        const SequenceSplits splits = SplitSequence(sequence, tokens, options);
        std::int64_t next = splits.keys.begin;
        for (int i = 0; i < splits.num_splits; ++i) {
          const KeyRange range = splits.Split(i, tokens);
          ASSERT_EQ(range.begin, next);
          ASSERT_GT(range.size(), 0);
          next = range.end;
          if (invariant && i > 0) {
            EXPECT_EQ((key_position + range.begin) % tokens, 0);
          }
        }
        EXPECT_EQ(next, splits.keys.end);
        EXPECT_EQ(splits.keys.end, 5000);
      }
    }
  }
}

TEST(LaunchPlanTest, InvariantSplitsIgnoreTheBatch) {
  std::vector<AttentionSequence> sequences{Sequence(1, 1980)};
  const PlanOptions options{.batch_invariant = true};
  const std::int64_t alone = ChooseSplitTokens(Params(sequences, 2), 1, options);
  sequences.push_back(Sequence(1, 90000));
  EXPECT_EQ(ChooseSplitTokens(Params(sequences, 2), 16, options), alone);
}

TEST(LaunchPlanTest, DecodePlanNamesItsSplitsAndWorkspace) {
  const KernelRow* row =
      FindKernel({Operation::kDecode, DataType::kFp32, DataType::kFp32, 64, 0}, {});
  ASSERT_NE(row, nullptr);
  if (row->operation != Operation::kDecode) GTEST_SKIP() << "no SIMD target on this machine";
  const std::vector<AttentionSequence> sequences{Sequence(1, 8192), Sequence(1, 100)};
  const AttentionParams params = Params(sequences, 1);
  const LaunchPlan one = PlanAttention(*row, params, {.num_threads = 2}, {.forced_splits = 1});
  const LaunchPlan four = PlanAttention(*row, params, {.num_threads = 2}, {.forced_splits = 4});
  EXPECT_EQ(one.num_splits, 1);
  EXPECT_EQ(four.num_splits, 4);
  EXPECT_EQ(four.split_tokens, 2048);
  EXPECT_GT(four.workspace_bytes, one.workspace_bytes);
  EXPECT_EQ(four.row, row);
}

}  // namespace
}  // namespace attnd::kernels
