// Decode steps: positions, epochs, repeats, order, failures that stand alone, pages.
#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/engine_fixture.h"

namespace attnd {
namespace {

// 4 slabs of 512 pages of 16 tokens: what the pool holds of one layer.
constexpr std::int64_t kPoolTokens = 32'768;

class DecodeStepsTest : public EngineTest {
 protected:
  // Both in-flight slots taken, so that steps wait.
  void Occupy() {
    for (int i = 0; i < 2; ++i) Submit(MakeAttend(HeadShape{4, 4, 64}, 1, 4));
    ASSERT_EQ(backend_.waiting(), 2U);
  }
  static const absl::Status& StepStatus(const AnswerPtr& answer, std::size_t i) {
    return answer->result.failed_steps.at(i).status;
  }
  std::int64_t PagesUsed() { return scheduler().GetSnapshot().pages_used; }
  CreateSequenceSpec WindowSpec(std::int32_t window) const {
    CreateSequenceSpec spec = MakeSequenceSpec(shape_);
    LayerGroupValues group;
    group.options.window_left = window;
    spec.layer_groups.push_back(group);
    return spec;
  }
};

TEST_F(DecodeStepsTest, StepsAppendOneAfterAnother) {
  const std::string id = Create();
  Fill(id, 0, 5);
  Fill(id, 5, 1);
  EXPECT_EQ(Length(id), 6);
}

TEST_F(DecodeStepsTest, AppendSeesEverythingUpToItself) {
  const std::string id = Create();
  Fill(id, 0, 5);
  Decode(id, 5, 3);
  const BatchItem& item = backend_.front().items.at(0);
  EXPECT_EQ(item.attention.kv_length, 8);
  EXPECT_EQ(item.attention.query_position, 5);
  EXPECT_TRUE(item.attention.causal);
  EXPECT_TRUE(item.appends);
  EXPECT_EQ(item.append.first_token, 5);
  EXPECT_EQ(item.append.num_tokens, 3);
}

TEST_F(DecodeStepsTest, PipelinedStepsAreAdmittedAgainstTheProjectedLength) {
  const std::string id = Create();
  const auto first = Decode(id, 0);
  const auto second = Decode(id, 1);
  const auto third = Decode(id, 2);
  const auto gap = Decode(id, 5);
  EXPECT_EQ(ReasonOf(gap), v1::REASON_POSITION);
  EXPECT_EQ(ErrorDetailOf(gap->result.status).cached_tokens(), 3);
  backend_.CompleteAll();
  EXPECT_TRUE(first->result.status.ok());
  EXPECT_TRUE(second->result.status.ok());
  EXPECT_TRUE(third->result.status.ok());
  EXPECT_EQ(Length(id), 3);
}

TEST_F(DecodeStepsTest, StepsOfOneLayerAreNeverInOneBatch) {
  const std::string id = Create();
  Occupy();
  Decode(id, 0);
  Decode(id, 1);
  Decode(id, 2);
  backend_.Complete();
  EXPECT_EQ(backend_.at(1).items.size(), 1U);
  backend_.CompleteAll();
  EXPECT_EQ(Length(id), 3);
}

TEST_F(DecodeStepsTest, LayersOfOneSequenceShareABatch) {
  const std::string id = Create(3);
  Occupy();
  for (int layer = 0; layer < 3; ++layer) Decode(id, 0, 1, 0, layer);
  backend_.Complete();
  EXPECT_EQ(backend_.at(1).items.size(), 3U);
}

TEST_F(DecodeStepsTest, RepeatAppendsNothingAndSeesWhatTheFirstOneSaw) {
  const std::string id = Create();
  Fill(id, 0, 5);
  Fill(id, 5, 1);
  Fill(id, 6, 1);
  const auto repeat = Decode(id, 5);
  const BatchItem& item = backend_.front().items.at(0);
  EXPECT_FALSE(item.appends);
  EXPECT_EQ(item.attention.kv_length, 6);
  EXPECT_EQ(item.attention.query_position, 5);
  backend_.CompleteAll();
  EXPECT_TRUE(repeat->result.status.ok());
  EXPECT_EQ(Length(id), 7);
}

TEST_F(DecodeStepsTest, PartialOverlapIsRefusedWithTheLength) {
  const std::string id = Create();
  Fill(id, 0, 5);
  const auto answer = Decode(id, 3, 4);
  EXPECT_EQ(CodeOf(answer), absl::StatusCode::kFailedPrecondition);
  const v1::ErrorDetail detail = ErrorDetailOf(answer->result.status);
  EXPECT_EQ(detail.reason(), v1::REASON_POSITION);
  EXPECT_EQ(detail.cached_tokens(), 5);
  EXPECT_EQ(detail.step_index(), 0);
  EXPECT_EQ(detail.field(), "steps[0].position");
}

// Named as they are on the wire: the tensors are the request's, and what they must be the
// sequence's.
TEST_F(DecodeStepsTest, TensorsUnlikeTheSequenceAreNamed) {
  const std::string id = Create();
  const auto refusal = [&](auto change) {
    AttentionRequest request = MakeDecode(shape_, {MakeStep(id, 0)});
    change(request);
    const absl::Status status = Submit(std::move(request))->result.status;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ErrorDetailOf(status).step_index(), 0);
    return ErrorDetailOf(status).field() + " | " + std::string(status.message());
  };
  EXPECT_EQ(refusal([](auto& r) { r.data_type = kernels::DataType::kBf16; }),
            "q.data_type | q.data_type: got BF16, need FP32 as the sequence of steps[0]");
  EXPECT_EQ(refusal([](auto& r) { r.num_heads = 8; }).substr(0, 28),
            "q.shape | q.shape: got 8 hea");
  EXPECT_EQ(refusal([](auto& r) { r.num_kv_heads = 3; }).substr(0, 28),
            "k.shape | k.shape: got 3 KV ");
  EXPECT_EQ(refusal([](auto& r) { r.head_dim = 16; }).substr(0, 7), "q.shape");
  EXPECT_EQ(refusal([](auto& r) { r.num_heads = 0, r.head_dim = 16; }).substr(0, 7), "k.shape");
}

TEST_F(DecodeStepsTest, LargerEpochCutsAndAppendsInOneOperation) {
  const std::string id = Create();
  Fill(id, 0, 10);
  const auto answer = Decode(id, 4, 2, 1);
  const BatchItem& item = backend_.front().items.at(0);
  EXPECT_EQ(item.attention.kv_length, 6);
  EXPECT_EQ(item.append.first_token, 4);
  backend_.CompleteAll();
  EXPECT_TRUE(answer->result.status.ok());
  EXPECT_EQ(Length(id), 6);
}

TEST_F(DecodeStepsTest, LargerEpochPastTheEndIsRefused) {
  const std::string id = Create();
  Fill(id, 0, 4);
  EXPECT_EQ(ReasonOf(Decode(id, 5, 1, 1)), v1::REASON_POSITION);
}

TEST_F(DecodeStepsTest, SmallerEpochIsALateDuplicate) {
  const std::string id = Create();
  Fill(id, 0, 4, 3);
  const auto answer = Decode(id, 4, 1, 2);
  EXPECT_EQ(CodeOf(answer), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(answer), v1::REASON_STALE_EPOCH);
  EXPECT_EQ(ErrorDetailOf(answer->result.status).epoch(), 3U);
  EXPECT_EQ(Length(id), 4);
}

TEST_F(DecodeStepsTest, PastMaxTokensIsRefusedWholeAndTheSequenceGoesOn) {
  CreateSequenceSpec spec = MakeSequenceSpec(shape_);
  spec.max_tokens = 64;
  const std::string id = CreateFrom(spec);
  Fill(id, 0, 62);
  const auto answer = Decode(id, 62, 5);
  EXPECT_EQ(CodeOf(answer), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(ReasonOf(answer), v1::REASON_LIMIT);
  EXPECT_EQ(Length(id), 62);
  Fill(id, 62, 2);
  EXPECT_EQ(Length(id), 64);
  EXPECT_EQ(CodeOf(Decode(id, 64)), absl::StatusCode::kOutOfRange);
}

TEST_F(DecodeStepsTest, StepsThatCannotRunDoNotStopTheOthers) {
  const std::string good = Create();
  const std::string also_good = Create();
  const auto answer = Decode({MakeStep(good, 0, 2), MakeStep(std::string(24, 'x'), 0, 3),
                              MakeStep(also_good, 7), MakeStep(also_good, 0, 1, 0, 9)});
  backend_.CompleteAll();
  ASSERT_TRUE(answer->result.status.ok()) << answer->result.status;
  ASSERT_EQ(answer->result.failed_steps.size(), 3U);
  EXPECT_EQ(answer->result.failed_steps[0].step_index, 1);
  EXPECT_EQ(ReasonOf(StepStatus(answer, 0)), v1::REASON_OTHER_SERVER);
  EXPECT_EQ(answer->result.failed_steps[1].step_index, 2);
  EXPECT_EQ(ReasonOf(StepStatus(answer, 1)), v1::REASON_POSITION);
  EXPECT_EQ(StepStatus(answer, 2).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorDetailOf(StepStatus(answer, 2)).field(), "steps[3].layer");
  EXPECT_EQ(Length(good), 2);
  EXPECT_EQ(Length(also_good), 0);
}

TEST_F(DecodeStepsTest, RowsOfFailedStepsAreZeroWithLseMinusInfinity) {
  const std::string id = Create();
  AttentionRequest request = MakeDecode(shape_, {MakeStep(id, 9, 2), MakeStep(Create(), 0, 1)});
  request.return_lse = true;
  const auto answer = Submit(std::move(request));
  backend_.CompleteAll();
  const auto o = Floats(answer->result.o);
  const auto lse = Floats(answer->result.lse);
  ASSERT_EQ(o.size(), 3U * 2 * 32);
  ASSERT_EQ(lse.size(), 3U * 2);
  for (std::size_t i = 0; i < 2U * 2 * 32; ++i) ASSERT_EQ(o[i], 0.0F);
  for (std::size_t i = 0; i < 2U * 2; ++i) ASSERT_EQ(lse[i], -INFINITY);
}

TEST_F(DecodeStepsTest, CallFailsWithTheFirstStatusWhenEveryStepFailed) {
  const std::string id = Create();
  const auto answer = Decode({MakeStep(id, 3), MakeStep(std::string(24, 'x'), 0)});
  ASSERT_TRUE(answer->done());
  EXPECT_EQ(ReasonOf(answer), v1::REASON_POSITION);
  EXPECT_TRUE(answer->result.failed_steps.empty());
  EXPECT_EQ(backend_.submitted(), 0U);
}

TEST_F(DecodeStepsTest, LayerNamedTwiceFailsTheWholeRequest) {
  const std::string id = Create(2);
  const auto answer =
      Decode({MakeStep(id, 0, 1, 0, 0), MakeStep(id, 0, 1, 0, 1), MakeStep(id, 1, 1, 0, 0)});
  EXPECT_EQ(CodeOf(answer), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorDetailOf(answer->result.status).field(), "steps[2]");
  backend_.CompleteAll();
  EXPECT_EQ(Length(id, 0), 0);
  EXPECT_EQ(Length(id, 1), 0);
}

TEST_F(DecodeStepsTest, TensorsOfAnotherHeadShapeFailTheirStep) {
  const std::string other = CreateFrom(MakeSequenceSpec(HeadShape{4, 2, 32}));
  const auto answer = Decode({MakeStep(Create(), 0), MakeStep(other, 0)});
  backend_.CompleteAll();
  ASSERT_TRUE(answer->result.status.ok());
  ASSERT_EQ(answer->result.failed_steps.size(), 1U);
  EXPECT_EQ(StepStatus(answer, 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorDetailOf(StepStatus(answer, 0)).field(), "q.shape");
  EXPECT_EQ(ErrorDetailOf(StepStatus(answer, 0)).step_index(), 1);
}

TEST_F(DecodeStepsTest, OtherTenantsSequencesAreUnknown) {
  const std::string id = Create();
  AttentionRequest request = MakeDecode(shape_, {MakeStep(id, 0)});
  request.tenant = "other";
  const auto answer = Submit(std::move(request));
  EXPECT_EQ(CodeOf(answer), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReasonOf(answer), v1::REASON_UNKNOWN_SEQUENCE);
}

TEST_F(DecodeStepsTest, CancelledStepTakesThoseThatBuildOnItAlong) {
  const std::string id = Create();
  Occupy();
  Decode(id, 0);
  const Ticket first = last_ticket_;
  const auto second = Decode(id, 1);
  const auto third = Decode(id, 2);
  const auto repeat_of_first = Decode(id, 0);
  scheduler().Cancel(first);
  for (const auto& answer : {second, third, repeat_of_first}) {
    ASSERT_TRUE(answer->done());
    EXPECT_EQ(CodeOf(answer), absl::StatusCode::kAborted);
    EXPECT_EQ(ReasonOf(answer), v1::REASON_PREDECESSOR);
  }
  Fill(id, 0, 1);  // the length is that of what ran: nothing
  EXPECT_EQ(Length(id), 1);
}

TEST_F(DecodeStepsTest, StepsThatDoNotBuildOnACancelledOneGoOn) {
  const std::string id = Create(2);
  Fill(id, 0, 8);
  Occupy();
  Decode(id, 8);
  const Ticket cancelled = last_ticket_;
  const auto repeat = Decode(id, 4, 2);
  const auto rollback = Decode(id, 5, 2, 1);
  const auto after_rollback = Decode(id, 7, 1, 1);
  const auto other_layer = Decode(id, 0, 1, 0, 1);
  scheduler().Cancel(cancelled);
  backend_.CompleteAll();
  EXPECT_TRUE(repeat->result.status.ok());
  EXPECT_TRUE(rollback->result.status.ok());
  EXPECT_TRUE(after_rollback->result.status.ok());
  EXPECT_TRUE(other_layer->result.status.ok());
  EXPECT_EQ(Length(id), 8);
}

TEST_F(DecodeStepsTest, PromptStoppedBetweenChunksAppendsNothing) {
  config_.prefill_chunk_time = Milliseconds{0};
  const std::string id = Create();
  Fill(id, 0, 3);
  const std::int64_t pages = PagesUsed();
  const auto prompt = Decode(id, 3, 300);
  const Ticket ticket = last_ticket_;
  const auto next = Decode(id, 303);
  backend_.Complete();
  backend_.Complete();
  EXPECT_FALSE(prompt->done());
  scheduler().Cancel(ticket);
  backend_.CompleteAll();
  EXPECT_EQ(CodeOf(prompt), absl::StatusCode::kCancelled);
  EXPECT_EQ(ReasonOf(next), v1::REASON_PREDECESSOR);
  EXPECT_EQ(Length(id), 3);
  EXPECT_EQ(PagesUsed(), pages);
  Fill(id, 3, 1);
}

TEST_F(DecodeStepsTest, AttendOnlySeesThePrefixWithoutACausalMask) {
  const std::string id = Create();
  Fill(id, 0, 10);
  AttentionRequest request = MakeDecode(shape_, {MakeStep(id, 6, 2)});
  request.k = request.v = TensorView{};
  const auto answer = Submit(std::move(request));
  const BatchItem& item = backend_.front().items.at(0);
  EXPECT_FALSE(item.appends);
  EXPECT_FALSE(item.attention.causal);
  EXPECT_EQ(item.attention.kv_length, 6);
  EXPECT_EQ(item.attention.query_position, 6);
  backend_.CompleteAll();
  EXPECT_TRUE(answer->result.status.ok());
  EXPECT_EQ(Length(id), 10);
}

TEST_F(DecodeStepsTest, AttendOnlyPastTheEndIsRefused) {
  const std::string id = Create();
  Fill(id, 0, 4);
  AttentionRequest request = MakeDecode(shape_, {MakeStep(id, 5)});
  request.k = request.v = TensorView{};
  EXPECT_EQ(ReasonOf(Submit(std::move(request))), v1::REASON_POSITION);
}

TEST_F(DecodeStepsTest, AttendOnlyNeedsAQueryPositionWhereOptionsDependOnIt) {
  const std::string id = CreateFrom(WindowSpec(100));
  Fill(id, 0, 4);
  AttentionRequest request = MakeDecode(shape_, {MakeStep(id, 4)});
  request.k = request.v = TensorView{};
  const auto refused = Submit(std::move(request));
  EXPECT_EQ(CodeOf(refused), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorDetailOf(refused->result.status).field(), "steps[0].query_position");

  AttentionRequest placed = MakeDecode(shape_, {MakeStep(id, 4)});
  placed.k = placed.v = TensorView{};
  placed.steps[0].query_position = 50;
  const auto answer = Submit(std::move(placed));
  EXPECT_EQ(backend_.front().items.at(0).attention.query_position, 50);
  backend_.CompleteAll();
  EXPECT_TRUE(answer->result.status.ok());
}

TEST_F(DecodeStepsTest, AppendOnlyStoresWithoutAttending) {
  const std::string id = Create();
  AttentionRequest request = MakeDecode(shape_, {MakeStep(id, 0, 7)});
  request.q = TensorView{};
  const auto answer = Submit(std::move(request));
  const BatchItem& item = backend_.front().items.at(0);
  EXPECT_TRUE(item.appends);
  EXPECT_FALSE(item.attends);
  backend_.CompleteAll();
  EXPECT_TRUE(answer->result.status.ok());
  EXPECT_EQ(answer->result.o.size_bytes, 0);
  EXPECT_EQ(Length(id), 7);
}

TEST_F(DecodeStepsTest, WindowedLayerFreesPagesBehindWindowAndSlack) {
  config_.window_slack_tokens = 32;
  config_.page_tokens = 16;
  const std::string id = CreateFrom(WindowSpec(32));
  Fill(id, 0, 64);
  EXPECT_EQ(PagesUsed(), 4);
  Fill(id, 64, 16);  // 80 tokens: those below 16 have passed
  EXPECT_EQ(PagesUsed(), 4);
  for (int i = 80; i < 200; ++i) Fill(id, i, 1);
  EXPECT_LE(PagesUsed(), 6);
  EXPECT_EQ(Length(id), 200);
  Decode(id, 200);
  const BatchItem& item = backend_.front().items.at(0);
  EXPECT_EQ(item.attention.query_position, 200);
  EXPECT_EQ(item.attention.key_position + item.attention.kv_length, 201);
  EXPECT_LE(item.attention.key_position, 200 - 32);
}

// 32 earlier keys and 32 of slack: token n needs those from n - 64 on, the next one those from
// n - 63 on. A page goes with the step that passes its last token, not later and not before.
TEST_F(DecodeStepsTest, AWindowFreesEachPageWithTheStepThatPassesIt) {
  config_.window_slack_tokens = 32;
  config_.page_tokens = 16;
  const std::string id = CreateFrom(WindowSpec(32));
  std::vector<std::uint32_t> pages;
  for (int position = 0; position < 160; ++position) {
    const auto answer = Decode(id, position);
    const Batch& batch = backend_.front();
    const std::int64_t first_kept = batch.items[0].attention.key_position;
    EXPECT_EQ(first_kept % 16, 0);
    EXPECT_LE(first_kept, std::max(0, position - 64)) << position;
    EXPECT_GT(first_kept + 16, position - 64 - 1) << position;
    backend_.CompleteAll();
    ASSERT_TRUE(answer->result.status.ok());
    const int length = position + 1;
    const int passed = std::max(0, length - 64) / 16;
    EXPECT_EQ(PagesUsed(), (length + 15) / 16 - passed) << length;
  }
}

TEST_F(DecodeStepsTest, WhatNeedsFreedKeysIsRefused) {
  config_.window_slack_tokens = 16;
  config_.page_tokens = 16;
  const std::string id = CreateFrom(WindowSpec(16));
  Fill(id, 0, 100);
  EXPECT_EQ(ReasonOf(Decode(id, 20, 1)), v1::REASON_WINDOW_PASSED);     // a repeat
  EXPECT_EQ(ReasonOf(Decode(id, 20, 1, 1)), v1::REASON_WINDOW_PASSED);  // a rollback
  Fill(id, 90, 1, 1);                                                   // within the slack
  EXPECT_EQ(Length(id), 91);
}

TEST_F(DecodeStepsTest, FullPoolFailsTheStepAloneAndNothingIsAppended) {
  config_.page_tokens = 16;
  CreateSequenceSpec spec = MakeSequenceSpec(shape_);
  spec.max_tokens = kPoolTokens;
  const std::string big = CreateFrom(spec);
  const std::string small = CreateFrom(spec);
  Fill(big, 0, 32'000);
  Fill(small, 0, 160);
  // 38 pages are left, the first step needs 44 of them.
  const auto answer = Decode({MakeStep(big, 32'000, 700), MakeStep(small, 160, 16)});
  backend_.CompleteAll();
  ASSERT_TRUE(answer->result.status.ok());
  ASSERT_EQ(answer->result.failed_steps.size(), 1U);
  EXPECT_EQ(StepStatus(answer, 0).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(StepStatus(answer, 0)), v1::REASON_CACHE_FULL);
  EXPECT_TRUE(ErrorDetailOf(StepStatus(answer, 0)).has_retry_delay());
  EXPECT_EQ(Length(big), 32'000);
  EXPECT_EQ(Length(small), 176);
}

TEST_F(DecodeStepsTest, StepLargerThanThePoolIsRefusedForGood) {
  config_.page_tokens = 16;
  CreateSequenceSpec spec = MakeSequenceSpec(shape_);
  spec.max_tokens = 50'000;  // with a window no limit of the pool
  spec.layer_groups.emplace_back().options.window_left = 64;
  const auto answer = Decode(CreateFrom(spec), 0, 40'000);
  ASSERT_TRUE(answer->done());
  EXPECT_EQ(ReasonOf(answer), v1::REASON_CACHE_FULL);
  EXPECT_FALSE(ErrorDetailOf(answer->result.status).has_retry_delay());
}

TEST_F(DecodeStepsTest, PagesAreSetAsideAtAdmission) {
  config_.page_tokens = 16;
  const std::string id = Create();
  Occupy();
  Decode(id, 0, 40);
  EXPECT_EQ(PagesUsed(), 3);
  scheduler().Cancel(last_ticket_);
  EXPECT_EQ(PagesUsed(), 0);
}

TEST_F(DecodeStepsTest, RollbackInAFullPoolReusesItsOwnPages) {
  config_.page_tokens = 16;
  CreateSequenceSpec spec = MakeSequenceSpec(shape_);
  spec.max_tokens = kPoolTokens;
  const std::string id = CreateFrom(spec);
  Fill(id, 0, 32'768);
  EXPECT_EQ(scheduler().GetSnapshot().slabs_free, 0);
  Fill(id, 1000, 31'768, 1);
  EXPECT_EQ(Length(id), 32'768);
}

TEST_F(DecodeStepsTest, ARollbackWritesIntoThePagesThatItDrops) {
  config_.page_tokens = 16;
  const std::string id = Create();
  Decode(id, 0, 64);
  const std::vector<std::uint32_t> first = backend_.front().page_tables;
  ASSERT_EQ(first.size(), 4U);
  backend_.CompleteAll();
  Decode(id, 20, 40, 1);
  const std::vector<std::uint32_t> second = backend_.front().page_tables;
  EXPECT_TRUE(backend_.front().copies.empty());
  EXPECT_EQ(PagesUsed(), 4) << "no other page is taken, not even while it runs";
  EXPECT_THAT(second, testing::UnorderedElementsAreArray(first));
  EXPECT_EQ(second[0], first[0]);
  EXPECT_EQ(second[1], first[1]) << "the partly kept one stays in its place";
  backend_.CompleteAll();
  EXPECT_EQ(PagesUsed(), 4);
}

TEST_F(DecodeStepsTest, ARollbackLeavesPagesThatAForkHoldsAlone) {
  config_.page_tokens = 16;
  const std::string id = Create();
  Decode(id, 0, 64);
  const std::vector<std::uint32_t> shared = backend_.front().page_tables;
  backend_.CompleteAll();
  const auto fork = Fork(id);
  ASSERT_TRUE((*fork)->ok());
  Decode(id, 20, 40, 1);
  const Batch& batch = backend_.front();
  EXPECT_EQ(batch.page_tables[0], shared[0]);
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_THAT(shared, testing::Not(testing::Contains(batch.page_tables[i]))) << i;
  }
  ASSERT_EQ(batch.copies.size(), 1U);
  EXPECT_EQ(batch.copies[0].from, shared[1]);
  EXPECT_EQ(batch.copies[0].to, batch.page_tables[1]);
  backend_.CompleteAll();
  Decode((**fork)->sequence_id, 64);
  EXPECT_THAT(std::vector<std::uint32_t>(backend_.front().page_tables.begin(),
                                         backend_.front().page_tables.begin() + 4),
              testing::ElementsAreArray(shared));
}

TEST_F(DecodeStepsTest, ReservedPagesServeTheirSequenceInAFullPool) {
  config_.page_tokens = 16;
  CreateSequenceSpec reserving = MakeSequenceSpec(shape_, 2);
  reserving.reserve_tokens = 32;
  const std::string reserved = CreateFrom(reserving);
  EXPECT_EQ(scheduler().GetSnapshot().reserved_bytes, 4 * 4096);
  CreateSequenceSpec spec = MakeSequenceSpec(shape_);
  spec.max_tokens = kPoolTokens;
  Fill(CreateFrom(spec), 0, 32'768 - 4 * 16);
  EXPECT_EQ(ReasonOf(Decode(Create(), 0)), v1::REASON_CACHE_FULL);
  for (int layer = 0; layer < 2; ++layer) Fill(reserved, 0, 32, 0, layer);
  EXPECT_EQ(scheduler().GetSnapshot().reserved_bytes, 0);
  EXPECT_EQ(ReasonOf(Decode(reserved, 32)), v1::REASON_CACHE_FULL);
  Fill(reserved, 0, 1, 1);  // gives a page back to the reserve, not to the pool
  EXPECT_EQ(scheduler().GetSnapshot().reserved_bytes, 4096);
  EXPECT_EQ(ReasonOf(Decode(Create(), 0)), v1::REASON_CACHE_FULL);
}

TEST_F(DecodeStepsTest, ReserveThatDoesNotFitIsRefusedAtCreation) {
  config_.page_tokens = 16;
  Fill(Create(), 0, 16);
  CreateSequenceSpec spec = MakeSequenceSpec(shape_, 8);
  spec.reserve_tokens = 4096;  // of which an empty pool would hold all
  const auto grant = scheduler().CreateSequence(spec);
  EXPECT_EQ(grant.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(grant.status()), v1::REASON_CACHE_FULL);
  EXPECT_EQ(PagesUsed(), 1);
}

TEST_F(DecodeStepsTest, RequestThatCannotGetPagesDoesNotHoldUpOthers) {
  config_.page_tokens = 16;
  CreateSequenceSpec spec = MakeSequenceSpec(shape_);
  spec.max_tokens = kPoolTokens;
  Fill(CreateFrom(spec), 0, 8000);
  const auto refused = Decode(CreateFrom(spec), 0, 32'000);
  EXPECT_EQ(ReasonOf(refused), v1::REASON_CACHE_FULL);
  for (int i = 0; i < 19; ++i) {
    const auto answer = Decode(Create(), 0);
    backend_.CompleteAll();
    EXPECT_TRUE(answer->result.status.ok());
  }
}

}  // namespace
}  // namespace attnd
