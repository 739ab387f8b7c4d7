#include "server/batch_policy.h"

#include <gmock/gmock.h>

#include <vector>

namespace attnd {
namespace {

using std::chrono::milliseconds;
using Kind = BatchDecision::Kind;

class BatchPolicyTest : public testing::Test {
 protected:
  BatchPolicyTest() {
    config_.max_batch_sequences = 8;
    config_.max_batch_tokens = 1000;
    config_.prefill_chunk_time = milliseconds(20);
    config_.decode_share = 0.5;
    config_.decode_gap = milliseconds(2);
  }

  QueueEntry& Add(QueueClass queue_class = QueueClass::kDecode, std::uint32_t shape_class = 0) {
    QueueEntry entry;
    entry.shape_class = shape_class;
    entry.queue_class = queue_class;
    entry.admitted = kStart;
    entry.order = entries_.size();
    entry.sequences = 1;
    entry.tokens = entry.most_tokens = 1;
    entry.work = 1;
    return entries_.emplace_back(entry);
  }
  // Every (row, key) pair is one unit of work; the device does `rate_` units a second.
  QueueEntry& AddPrefill(std::int32_t tokens, std::uint32_t shape_class = 1) {
    QueueEntry& entry = Add(QueueClass::kPrefill, shape_class);
    entry.tokens = tokens;
    entry.prefill.tokens = tokens;
    entry.prefill.first_visible = 1;
    entry.prefill.max_visible = 1;  // so that a row is one unit
    entry.prefill.work_per_key = 1;
    entry.work = tokens;
    return entry;
  }
  BatchDecision Decide() {
    QueueView view;
    view.entries = entries_;
    view.tenant_used = used_;
    rates_.assign(4, rate_);
    view.work_per_second = rates_;
    view.batches_in_flight = in_flight_;
    view.prefill_batches_in_flight = prefill_in_flight_;
    view.turns = turns_;
    return DecideBatch(config_, view, now_);
  }
  std::vector<std::size_t> Order() {
    std::vector<std::size_t> order;
    for (const auto& take : Decide().takes) order.push_back(take.entry);
    return order;
  }

  static constexpr Clock::TimePoint kStart{std::chrono::hours(1)};
  BatchPolicyConfig config_;
  std::vector<QueueEntry> entries_;
  std::vector<double> used_{0, 0, 0, 0}, rates_;
  double rate_ = 10'000;  // 200 units in a chunk
  int in_flight_ = 0, prefill_in_flight_ = 0;
  DeviceTurns turns_;
  Clock::TimePoint now_ = kStart;
};

TEST_F(BatchPolicyTest, EmptyQueueNeedsNothing) { EXPECT_EQ(Decide().kind, Kind::kNothing); }

TEST_F(BatchPolicyTest, FullBackendGetsNothing) {
  Add();
  in_flight_ = config_.max_batches_in_flight;
  EXPECT_EQ(Decide().kind, Kind::kNothing);
}

TEST_F(BatchPolicyTest, EverythingOfOneClassIsTaken) {
  for (int i = 0; i < 5; ++i) Add();
  const BatchDecision decision = Decide();
  EXPECT_EQ(decision.kind, Kind::kDispatch);
  EXPECT_EQ(decision.takes.size(), 5U);
  EXPECT_EQ(decision.closed, BatchClosed::kQueueEmpty);
}

TEST_F(BatchPolicyTest, OtherClassesWait) {
  Add();
  Add(QueueClass::kDecode, 2);
  Add();
  EXPECT_THAT(Order(), testing::ElementsAre(0, 2));
  EXPECT_EQ(Decide().closed, BatchClosed::kShape);
}

TEST_F(BatchPolicyTest, BatchClosesAtItsSequences) {
  Add().sequences = 5;
  Add().sequences = 5;
  entries_[0].tokens = entries_[1].tokens = 5;
  const BatchDecision decision = Decide();
  ASSERT_EQ(decision.takes.size(), 2U);
  EXPECT_EQ(decision.takes[1].sequences, 3);
  EXPECT_EQ(decision.closed, BatchClosed::kSequences);
}

TEST_F(BatchPolicyTest, BatchClosesAtItsTokens) {
  config_.max_batch_tokens = 20;
  for (int i = 0; i < 3; ++i) {
    Add().sequences = 2;
    entries_.back().tokens = 16;
    entries_.back().most_tokens = 8;
  }
  const BatchDecision decision = Decide();
  ASSERT_EQ(decision.takes.size(), 1U);
  EXPECT_EQ(decision.takes[0].sequences, 2);
  EXPECT_EQ(decision.closed, BatchClosed::kTokens);
}

// The policy knows the sum and the largest of a request's steps, not which come first.
TEST_F(BatchPolicyTest, UnequalStepsCountAsTheLargestWhereNotAllFit) {
  config_.max_batch_tokens = 20;
  Add().sequences = 4;
  entries_[0].tokens = 20;
  entries_[0].most_tokens = 10;
  EXPECT_EQ(Decide().takes[0].sequences, 4) << "all of them fit";
  entries_[0].tokens = 21;
  EXPECT_EQ(Decide().takes[0].sequences, 2);
  EXPECT_EQ(Decide().closed, BatchClosed::kTokens);
}

TEST_F(BatchPolicyTest, SequenceOfMoreTokensThanABatchStillRuns) {
  config_.max_batch_tokens = 10;
  Add();
  entries_[0].tokens = entries_[0].most_tokens = 50;
  ASSERT_EQ(Decide().takes.size(), 1U);
}

TEST_F(BatchPolicyTest, DecodeGoesBeforePrefill) {
  AddPrefill(100);
  Add();
  EXPECT_THAT(Order(), testing::ElementsAre(1));
}

// A prefill launch of 10 ms has just ended; half of the time belongs to decodes.
class DecodeShareTest : public BatchPolicyTest {
 protected:
  DecodeShareTest() {
    turns_.prefill_ended = now_;
    turns_.prefill_time = milliseconds(10);
    turns_.decode_since_prefill = true;
  }
  static constexpr Clock::TimePoint kTurn = kStart + milliseconds(10);
};

TEST_F(DecodeShareTest, PrefillGetsATurnOnceDecodesHaveHadTheirShare) {
  AddPrefill(100);
  Add();
  now_ = kTurn - milliseconds(1);
  EXPECT_THAT(Order(), testing::ElementsAre(1));
  now_ = kTurn;
  EXPECT_THAT(Order(), testing::ElementsAre(0));
}

TEST_F(DecodeShareTest, DecodesThatHadNoLaunchGoFirst) {
  AddPrefill(100);
  Add();
  now_ = kTurn + milliseconds(1);
  turns_.decode_since_prefill = false;
  EXPECT_THAT(Order(), testing::ElementsAre(1));
}

TEST_F(DecodeShareTest, PrefillStaysBackBehindARunningDecode) {
  AddPrefill(100);
  in_flight_ = 1;
  const BatchDecision decision = Decide();
  EXPECT_EQ(decision.kind, Kind::kWait);
  EXPECT_EQ(decision.wait_until, kTurn);
  now_ = kTurn;
  EXPECT_EQ(Decide().kind, Kind::kDispatch);
}

TEST_F(DecodeShareTest, PrefillWaitsAGapForTheNextStepOfAGeneration) {
  AddPrefill(100);
  turns_.decode_ended = kStart + milliseconds(3);
  now_ = kStart + milliseconds(4);
  const BatchDecision decision = Decide();
  EXPECT_EQ(decision.kind, Kind::kWait);
  EXPECT_EQ(decision.wait_until, kStart + milliseconds(5));
  now_ = decision.wait_until;
  EXPECT_EQ(Decide().kind, Kind::kDispatch) << "none came";
}

TEST_F(DecodeShareTest, TheGapDoesNotOutlastTheShare) {
  AddPrefill(100);
  turns_.decode_ended = kTurn - milliseconds(1);
  now_ = turns_.decode_ended;
  EXPECT_EQ(Decide().wait_until, kTurn);
}

TEST_F(DecodeShareTest, PromptsAloneFollowOneAnother) {
  AddPrefill(100);
  turns_.decode_ended = kStart - milliseconds(15);  // before the last prefill launch
  turns_.decode_since_prefill = false;
  EXPECT_EQ(Decide().kind, Kind::kDispatch);
}

TEST_F(DecodeShareTest, PrefillIsHeldForDecodesThatWaitForMore) {
  config_.max_queue_delay = milliseconds(5);
  AddPrefill(100);
  entries_[0].admitted = kStart - milliseconds(100);
  Add();
  const BatchDecision decision = Decide();
  EXPECT_EQ(decision.kind, Kind::kWait);
  EXPECT_EQ(decision.wait_until, kStart + milliseconds(5));
}

TEST_F(DecodeShareTest, UrgentPrefillIsNotHeldForOtherDecodes) {
  AddPrefill(100).priority = 1;
  AddPrefill(100);
  in_flight_ = 1;
  EXPECT_THAT(Order(), testing::ElementsAre(0));
  turns_.decode_priority = 1;
  EXPECT_EQ(Decide().kind, Kind::kWait);
  turns_.decode_priority = -1;
  EXPECT_THAT(Order(), testing::ElementsAre(0, 1));
}

TEST_F(DecodeShareTest, ShareOfZeroHoldsNothing) {
  config_.decode_share = 0;
  AddPrefill(100);
  turns_.decode_ended = now_;
  EXPECT_EQ(Decide().kind, Kind::kDispatch);
}

TEST_F(BatchPolicyTest, OnlyOnePrefillLaunchIsInFlight) {
  AddPrefill(100);
  in_flight_ = prefill_in_flight_ = 1;
  EXPECT_EQ(Decide().kind, Kind::kNothing);
  Add();
  EXPECT_THAT(Order(), testing::ElementsAre(1));
}

TEST_F(BatchPolicyTest, PrefillIsCutToTheChunkTimeByTheMeasuredRate) {
  AddPrefill(10'000);
  BatchDecision decision = Decide();
  ASSERT_EQ(decision.takes.size(), 1U);
  EXPECT_EQ(decision.takes[0].prefill_tokens, 192);  // 200 fit, whole tiles of 64
  EXPECT_EQ(decision.closed, BatchClosed::kChunk);
  rate_ = 20'000;
  EXPECT_EQ(Decide().takes[0].prefill_tokens, 384);
}

TEST_F(BatchPolicyTest, ShortPromptsShareAChunk) {
  for (int i = 0; i < 4; ++i) AddPrefill(80);
  const BatchDecision decision = Decide();
  ASSERT_EQ(decision.takes.size(), 3U);
  EXPECT_EQ(decision.takes[0].prefill_tokens, 80);
  EXPECT_EQ(decision.takes[1].prefill_tokens, 80);
  EXPECT_EQ(decision.takes[2].prefill_tokens, 32);  // 40 left, tiles of 16
}

TEST_F(BatchPolicyTest, PrefillAlwaysAdvances) {
  rate_ = 1;
  AddPrefill(100);
  ASSERT_EQ(Decide().takes.size(), 1U);
  EXPECT_EQ(Decide().takes[0].prefill_tokens, 1);
}

TEST_F(BatchPolicyTest, NaivePrefillIsLaunchedWhole) {
  AddPrefill(5000).prefill.divisible = false;
  EXPECT_EQ(Decide().takes[0].prefill_tokens, 5000);
}

TEST_F(BatchPolicyTest, AloneSharesNothing) {
  Add().alone = true;
  Add();
  Add();
  EXPECT_THAT(Order(), testing::ElementsAre(0));
  EXPECT_EQ(Decide().closed, BatchClosed::kAlone);
  entries_.erase(entries_.begin());
  entries_[1].alone = true;
  EXPECT_THAT(Order(), testing::ElementsAre(0));
}

TEST_F(BatchPolicyTest, AloneKeepsToTheBatchLimit) {
  Add().alone = true;
  entries_[0].sequences = 20;
  entries_[0].tokens = 20;
  EXPECT_EQ(Decide().takes.at(0).sequences, 8);
}

TEST_F(BatchPolicyTest, EarliestDeadlineComesFirst) {
  config_.max_batch_sequences = 2;
  Add();
  Add().deadline = now_ + milliseconds(50);
  Add().deadline = now_ + milliseconds(10);
  EXPECT_THAT(Order(), testing::ElementsAre(2, 1));
}

TEST_F(BatchPolicyTest, WorkWithoutADeadlineDoesNotStarve) {
  config_.max_batch_sequences = 1;
  Add();
  now_ += kNoDeadlineHorizon;
  QueueEntry& newer = Add();
  newer.admitted = now_;
  newer.deadline = now_ + milliseconds(1);
  EXPECT_THAT(Order(), testing::ElementsAre(0));
}

TEST_F(BatchPolicyTest, PriorityComesBeforeEverythingElse) {
  config_.max_batch_sequences = 1;
  Add().priority = -1;
  AddPrefill(10);
  Add().priority = 5;
  EXPECT_THAT(Order(), testing::ElementsAre(2));
  entries_.pop_back();
  EXPECT_THAT(Order(), testing::ElementsAre(1));  // prefill before decode that may wait
}

TEST_F(BatchPolicyTest, TenantsAlternateByWhatTheyUse) {
  config_.max_batch_sequences = 4;
  for (int i = 0; i < 6; ++i) Add();
  Add().tenant = 1;
  Add().tenant = 1;
  EXPECT_THAT(Order(), testing::ElementsAre(0, 6, 1, 7));
  used_ = {100, 0, 0, 0};
  EXPECT_THAT(Order(), testing::ElementsAre(6, 7, 0, 1));
}

TEST_F(BatchPolicyTest, DelayHoldsAYoungBatchAndNamesTheTime) {
  config_.max_queue_delay = milliseconds(5);
  Add();
  const BatchDecision decision = Decide();
  EXPECT_EQ(decision.kind, Kind::kWait);
  EXPECT_EQ(decision.wait_until, kStart + milliseconds(5));
  now_ += milliseconds(5);
  EXPECT_EQ(Decide().kind, Kind::kDispatch);
}

TEST_F(BatchPolicyTest, FullBatchDoesNotWait) {
  config_.max_queue_delay = milliseconds(5);
  for (int i = 0; i < config_.max_batch_sequences; ++i) Add();
  EXPECT_EQ(Decide().kind, Kind::kDispatch);
}

TEST_F(BatchPolicyTest, ClassThatIsDueGoesWhileAnotherWaits) {
  config_.max_queue_delay = milliseconds(5);
  Add();
  for (int i = 0; i < config_.max_batch_sequences; ++i) Add(QueueClass::kDecode, 2);
  const BatchDecision decision = Decide();
  ASSERT_EQ(decision.kind, Kind::kDispatch);
  EXPECT_EQ(entries_[decision.takes[0].entry].shape_class, 2U);
}

TEST_F(BatchPolicyTest, WorkOfCausalRowsIsATriangleUpToTheWindow) {
  PrefillWork prefill;
  prefill.tokens = 10;
  prefill.first_visible = 3;
  prefill.max_visible = 6;
  prefill.work_per_key = 2;
  prefill.work_per_row = 0.5;
  // Rows see 3, 4, 5, 6, 6, ... keys.
  EXPECT_DOUBLE_EQ(WorkOf(prefill, 1), 2 * 3 + 0.5);
  EXPECT_DOUBLE_EQ(WorkOf(prefill, 5), 2 * (3 + 4 + 5 + 6 + 6) + 5 * 0.5);
  EXPECT_DOUBLE_EQ(WorkOf(prefill, 10), 2 * (3 + 4 + 5 + 7 * 6) + 10 * 0.5);
  prefill.causal = false;
  EXPECT_DOUBLE_EQ(WorkOf(prefill, 10), 2 * 10 * 3 + 10 * 0.5);
}

TEST_F(BatchPolicyTest, TokensWithinIsTheMostThatFits) {
  PrefillWork prefill;
  prefill.tokens = 15;
  prefill.first_visible = 1;
  prefill.max_visible = 100;
  prefill.work_per_key = 1;
  EXPECT_EQ(TokensWithin(prefill, 1e9), 15);
  EXPECT_EQ(TokensWithin(prefill, 45), 9);  // 1 + 2 + ... + 9
  EXPECT_EQ(TokensWithin(prefill, 44), 8);
  EXPECT_EQ(TokensWithin(prefill, 0), 1);
}

}  // namespace
}  // namespace attnd
