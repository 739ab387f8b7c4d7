// Queueing, batching, deadlines, cancellation, faults and draining, stepped by hand.
#include "server/scheduler.h"

#include <gmock/gmock.h>

#include "tests/support/engine_fixture.h"

namespace attnd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class SchedulerTest : public EngineTest {
 protected:
  // Keeps the device busy, so that what follows waits.
  void Occupy() {
    for (int i = 0; i < backend_.limits().max_batches_in_flight; ++i) {
      Submit(MakeAttend(shape_, 1, 4));
    }
    ASSERT_EQ(backend_.waiting(), 2U);
  }
};

TEST_F(SchedulerTest, LoneRequestIsLaunchedInsideSubmit) {
  const auto answer = Submit(MakeAttend(shape_, 1, 4));
  EXPECT_EQ(backend_.waiting(), 1U);
  EXPECT_FALSE(answer->done());
  backend_.Complete();
  ASSERT_TRUE(answer->done());
  EXPECT_TRUE(answer->result.status.ok());
  EXPECT_EQ(answer->result.o.size_bytes, 2 * 32 * 4);
  EXPECT_EQ(answer->count, 1);
}

TEST_F(SchedulerTest, SubmitterRunsWhatTheBackendLeavesToIt) {
  backend_.RunHere(true);
  const auto answer = Submit(MakeAttend(shape_, 1, 4));
  ASSERT_EQ(answer->count, 1);
  EXPECT_TRUE(answer->result.status.ok());
  EXPECT_EQ(backend_.ran_here(), 1U);
  EXPECT_EQ(backend_.submitted(), 0U);
  EXPECT_TRUE(scheduler().Idle());
}

TEST_F(SchedulerTest, CompletionLeavesTheNextBatchToTheBackend) {
  Occupy();
  const auto answer = Submit(MakeAttend(shape_, 1, 4));
  backend_.RunHere(true);
  backend_.CompleteAll();
  EXPECT_EQ(answer->count, 1);
  EXPECT_EQ(backend_.ran_here(), 0U);
  EXPECT_EQ(backend_.submitted(), 3U);
}

TEST_F(SchedulerTest, RequestsThatWaitForABusyDeviceShareOneLaunch) {
  Occupy();
  std::vector<AnswerPtr> answers;
  for (int i = 0; i < 10; ++i) answers.push_back(Submit(MakeAttend(shape_, 1, 4)));
  EXPECT_EQ(backend_.waiting(), 2U);
  backend_.Complete();
  ASSERT_EQ(backend_.waiting(), 2U);
  EXPECT_EQ(backend_.at(1).items.size(), 10U);
  backend_.CompleteAll();
  for (const auto& answer : answers) {
    ASSERT_EQ(answer->count, 1);
    EXPECT_EQ(answer->result.execution.batch_requests, 10);
  }
}

TEST_F(SchedulerTest, BatchIsCutAtMaxBatchSequences) {
  config_.max_batch_sequences = 4;
  Occupy();
  for (int i = 0; i < 10; ++i) Submit(MakeAttend(shape_, 1, 4));
  backend_.Complete();
  EXPECT_EQ(backend_.at(1).items.size(), 4U);
  const std::size_t before = backend_.submitted();
  backend_.CompleteAll();
  EXPECT_EQ(backend_.submitted() - before, 2U);  // 4 and 2 more
}

// Steps of one request, of requests, and prompts, all of different lengths.
TEST_F(SchedulerTest, NoLaunchHasMoreTokensThanTheLimit) {
  config_.max_batch_tokens = 40;
  std::vector<AnswerPtr> answers;
  const auto sizes = [](int seed) {
    std::vector<std::int32_t> lengths;
    for (int i = 0; i < 12; ++i) lengths.push_back(1 + (seed * 7 + i * i * 5) % 32);
    return lengths;
  };
  Occupy();
  for (int request = 0; request < 10; ++request) {
    std::vector<DecodeStep> steps;
    for (const std::int32_t length : sizes(request)) {
      steps.push_back(MakeStep(Create(), 0, length));
    }
    answers.push_back(Decode(std::move(steps)));
  }
  answers.push_back(Submit(MakeAttend(shape_, 500, 500)));
  std::int64_t most = 0;
  while (backend_.waiting() > 0) {
    std::int64_t tokens = 0;
    for (const BatchItem& item : backend_.front().items) {
      tokens += item.attends ? item.attention.query_length : item.append.num_tokens;
    }
    EXPECT_LE(tokens, 40);
    most = std::max(most, tokens);
    backend_.Complete();
  }
  EXPECT_GT(most, 32) << "several share a launch";
  for (const auto& answer : answers) EXPECT_TRUE(answer->result.status.ok());
}

TEST_F(SchedulerTest, WorkThatCannotBeCutAndIsOverTheLimitIsRefused) {
  config_.max_batch_tokens = 40;
  AttentionRequest naive = MakeAttend(shape_, 40, 40);
  naive.execution.algorithm = Algorithm::kNaive;
  const auto fits = Submit(std::move(naive));
  EXPECT_FALSE(fits->done());
  naive = MakeAttend(shape_, 41, 41);
  naive.execution.algorithm = Algorithm::kNaive;
  const auto refused = Submit(std::move(naive));
  ASSERT_TRUE(refused->done());
  EXPECT_EQ(CodeOf(refused), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(ErrorDetailOf(refused->result.status).field(), "query_lengths");
  EXPECT_THAT(std::string(refused->result.status.message()),
              testing::HasSubstr("got 41 tokens that run in one launch, need at most 40"));
  AttentionRequest step = MakeDecode(shape_, {MakeStep(Create(), 0, 41)});
  step.execution.algorithm = Algorithm::kNaive;
  EXPECT_EQ(ErrorDetailOf(Submit(std::move(step))->result.status).field(), "steps[0].num_tokens");
  EXPECT_FALSE(Submit(MakeAttend(shape_, 41, 41))->done()) << "fused runs in two launches";
}

TEST_F(SchedulerTest, DifferentShapesDoNotShareALaunch) {
  Occupy();
  Submit(MakeAttend(shape_, 1, 4));
  Submit(MakeAttend(HeadShape{4, 2, 32}, 1, 4));
  AttentionRequest capped = MakeAttend(shape_, 1, 4);
  capped.options.logits_soft_cap = 5;
  Submit(std::move(capped));
  const std::size_t before = backend_.submitted();
  backend_.CompleteAll();
  EXPECT_EQ(backend_.submitted() - before, 3U);
}

TEST_F(SchedulerTest, OptionValuesShareALaunch) {
  Occupy();
  for (const float scale : {0.5F, -1.0F, 0.0F}) {
    AttentionRequest request = MakeAttend(shape_, 1, 4);
    request.options.softmax_scale = scale;
    Submit(std::move(request));
  }
  backend_.Complete();
  ASSERT_EQ(backend_.at(1).items.size(), 3U);
  EXPECT_EQ(backend_.at(1).items[1].attention.softmax_scale, -1.0F);
}

TEST_F(SchedulerTest, AloneIsNeverBatched) {
  Occupy();
  for (int i = 0; i < 3; ++i) {
    AttentionRequest request = MakeAttend(shape_, 1, 4);
    request.execution.alone = i == 1;
    Submit(std::move(request));
  }
  const std::size_t before = backend_.submitted();
  backend_.CompleteAll();
  EXPECT_EQ(backend_.submitted() - before, 2U);
}

TEST_F(SchedulerTest, NaiveAndFusedDoNotShareALaunch) {
  Occupy();
  Submit(MakeAttend(shape_, 1, 4));
  AttentionRequest naive = MakeAttend(shape_, 1, 4);
  naive.execution.algorithm = Algorithm::kNaive;
  Submit(std::move(naive));
  backend_.Complete();
  EXPECT_EQ(backend_.at(1).items.size(), 1U);
}

TEST_F(SchedulerTest, DelayWaitsForMoreWorkAndNoLonger) {
  config_.max_queue_delay = Milliseconds{20};
  const auto first = Submit(MakeAttend(shape_, 1, 4));
  EXPECT_EQ(backend_.waiting(), 0U);
  clock_.Advance(milliseconds(19));
  Submit(MakeAttend(shape_, 1, 4));
  EXPECT_EQ(backend_.waiting(), 0U);
  clock_.Advance(milliseconds(1));
  scheduler().RunDueWork();
  ASSERT_EQ(backend_.waiting(), 1U);
  EXPECT_EQ(backend_.front().items.size(), 2U);
}

TEST_F(SchedulerTest, FullBatchDoesNotWaitForTheDelay) {
  config_.max_queue_delay = Milliseconds{20};
  config_.max_batch_sequences = 8;
  for (int i = 0; i < 8; ++i) Submit(MakeAttend(shape_, 1, 4));
  ASSERT_EQ(backend_.waiting(), 1U);
  EXPECT_EQ(backend_.front().items.size(), 8U);
}

TEST_F(SchedulerTest, QueueIsBoundedInRequests) {
  config_.max_queue_requests = 5;
  Occupy();
  std::vector<AnswerPtr> answers;
  for (int i = 0; i < 8; ++i) answers.push_back(Submit(MakeAttend(shape_, 1, 4)));
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(answers[static_cast<std::size_t>(i)]->done());
  for (int i = 5; i < 8; ++i) {
    const auto& answer = answers[static_cast<std::size_t>(i)];
    ASSERT_TRUE(answer->done());
    EXPECT_EQ(CodeOf(answer), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(ReasonOf(answer), v1::REASON_QUEUE_FULL);
    EXPECT_TRUE(ErrorDetailOf(answer->result.status).has_retry_delay());
  }
  EXPECT_EQ(scheduler().GetSnapshot().queue_requests, 5);
  backend_.CompleteAll();
  EXPECT_FALSE(Submit(MakeAttend(shape_, 1, 4))->done());  // there is room again
}

TEST_F(SchedulerTest, QueueIsBoundedInBytes) {
  config_.max_queue_bytes = 3500;  // requests are 1000 each, two of them run
  Occupy();
  EXPECT_FALSE(Submit(MakeAttend(shape_, 1, 4))->done());
  EXPECT_EQ(ReasonOf(Submit(MakeAttend(shape_, 1, 4))), v1::REASON_QUEUE_FULL);
  backend_.CompleteAll();
  EXPECT_EQ(scheduler().GetSnapshot().queue_bytes, 0);
}

TEST_F(SchedulerTest, DeadlineEndsWaitingWorkWhileABatchRuns) {
  Occupy();
  AttentionRequest request = MakeAttend(shape_, 1, 4);
  request.deadline = clock_.Now() + milliseconds(200);
  const auto late = Submit(std::move(request));
  clock_.Advance(milliseconds(199));
  scheduler().RunDueWork();
  EXPECT_FALSE(late->done());
  clock_.Advance(milliseconds(1));
  scheduler().RunDueWork();
  ASSERT_TRUE(late->done());
  EXPECT_EQ(CodeOf(late), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(scheduler().GetSnapshot().queue_requests, 0);
  const std::size_t before = backend_.submitted();
  backend_.CompleteAll();
  EXPECT_EQ(backend_.submitted(), before);  // it was never launched
}

TEST_F(SchedulerTest, ExpiredWorkIsNotLaunchedEvenIfNoTimerRan) {
  Occupy();
  AttentionRequest request = MakeAttend(shape_, 1, 4);
  request.deadline = clock_.Now() + milliseconds(1);
  const auto late = Submit(std::move(request));
  clock_.Advance(milliseconds(2));
  const std::size_t before = backend_.submitted();
  backend_.CompleteAll();
  EXPECT_EQ(CodeOf(late), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(backend_.submitted(), before);
}

TEST_F(SchedulerTest, DeadlineThatHasPassedOnArrivalIsRefused) {
  AttentionRequest request = MakeAttend(shape_, 1, 4);
  request.deadline = clock_.Now();
  EXPECT_EQ(ReasonOf(Submit(std::move(request))), v1::REASON_DEADLINE);
  EXPECT_EQ(backend_.submitted(), 0U);
}

TEST_F(SchedulerTest, LaunchedWorkOutlivesItsDeadline) {
  AttentionRequest request = MakeAttend(shape_, 1, 4);
  request.deadline = clock_.Now() + milliseconds(1);
  const auto answer = Submit(std::move(request));
  clock_.Advance(milliseconds(5));
  scheduler().RunDueWork();
  EXPECT_FALSE(answer->done());
  backend_.CompleteAll();
  EXPECT_TRUE(answer->result.status.ok());
}

TEST_F(SchedulerTest, CancelDropsWaitingWorkAtOnce) {
  Occupy();
  const auto answer = Submit(MakeAttend(shape_, 1, 4));
  scheduler().Cancel(last_ticket_);
  ASSERT_TRUE(answer->done());
  EXPECT_EQ(CodeOf(answer), absl::StatusCode::kCancelled);
  const auto snapshot = scheduler().GetSnapshot();
  EXPECT_EQ(snapshot.queue_requests, 0);
  EXPECT_EQ(snapshot.queue_bytes, 2000);  // of the two that run
  const std::size_t before = backend_.submitted();
  backend_.CompleteAll();
  EXPECT_EQ(backend_.submitted(), before);
}

TEST_F(SchedulerTest, CancelLeavesRunningWorkAlone) {
  const auto answer = Submit(MakeAttend(shape_, 1, 4));
  scheduler().Cancel(last_ticket_);
  EXPECT_FALSE(answer->done());
  backend_.CompleteAll();
  EXPECT_TRUE(answer->result.status.ok());
  scheduler().Cancel(last_ticket_);  // an answered one: ignored
  scheduler().Cancel(123456);
  EXPECT_EQ(answer->count, 1);
}

TEST_F(SchedulerTest, CancelStopsAPromptBetweenChunks) {
  config_.prefill_chunk_time = Milliseconds{0};
  const auto answer = Submit(MakeAttend(shape_, 200, 200));
  ASSERT_EQ(backend_.waiting(), 1U);
  scheduler().Cancel(last_ticket_);
  EXPECT_FALSE(answer->done());  // its chunk runs
  backend_.Complete();
  ASSERT_TRUE(answer->done());
  EXPECT_EQ(CodeOf(answer), absl::StatusCode::kCancelled);
  EXPECT_EQ(backend_.waiting(), 0U);
}

TEST_F(SchedulerTest, ChunksCoverThePromptOnce) {
  config_.prefill_chunk_time = Milliseconds{0};
  AttentionRequest request = MakeAttend(shape_, 200, 200);
  request.options.causal = true;
  const auto answer = Submit(std::move(request));
  std::int64_t next = 0;
  while (backend_.waiting() > 0) {
    ASSERT_EQ(backend_.waiting(), 1U);  // one prefill launch in flight
    const BatchItem& item = backend_.front().items.at(0);
    EXPECT_EQ(item.attention.query_position, next);
    EXPECT_EQ(item.q.offset_bytes, next * 2 * 32 * 4);
    next += item.attention.query_length;
    backend_.Complete();
  }
  EXPECT_EQ(next, 200);
  EXPECT_TRUE(answer->result.status.ok());
}

TEST_F(SchedulerTest, DecodeGoesBetweenTheChunksOfAPrompt) {
  config_.prefill_chunk_time = Milliseconds{0};
  const std::string id = Create();
  Submit(MakeAttend(shape_, 2000, 2000));
  ASSERT_EQ(backend_.waiting(), 1U);
  const auto step = Decode(id, 0);
  ASSERT_EQ(backend_.waiting(), 2U);  // right behind the running chunk
  backend_.Complete();
  backend_.Complete();
  EXPECT_TRUE(step->done());
}

TEST_F(SchedulerTest, AfterAChunkThePromptLeavesDecodesTheirShare) {
  const std::string id = Create();
  Submit(MakeAttend(shape_, 2000, 2000));
  Decode(id, 0);
  ASSERT_EQ(backend_.waiting(), 2U);
  clock_.Advance(milliseconds(20));
  backend_.Complete();  // the chunk
  EXPECT_EQ(backend_.waiting(), 1U) << "the next one stays back";
  backend_.Complete();
  EXPECT_EQ(backend_.waiting(), 0U) << "another step may come";
  const auto step = Decode(id, 1);
  EXPECT_EQ(backend_.waiting(), 1U);
  backend_.Complete();
  EXPECT_TRUE(step->done());
  clock_.Advance(milliseconds(2));
  scheduler().RunDueWork();
  EXPECT_EQ(backend_.waiting(), 1U) << "none came";
}

TEST_F(SchedulerTest, ShareOfDecodesEndsWhileTheyKeepComing) {
  const std::string id = Create();
  Submit(MakeAttend(shape_, 2000, 2000));
  clock_.Advance(milliseconds(20));
  Decode(id, 0);
  backend_.Complete();  // the chunk
  int steps = 0;
  while (backend_.waiting() == 1) {  // a step
    clock_.Advance(milliseconds(1));
    backend_.Complete();
    ASSERT_LE(++steps, 20);
    Decode(id, steps);
  }
  EXPECT_GE(steps, 10);  // 35 of 65 parts of 20 ms
  EXPECT_LE(steps, 12);
}

TEST_F(SchedulerTest, ZeroRowAttendIsAnsweredWithoutALaunch) {
  const auto answer = Submit(MakeAttend(shape_, 0, 4));
  ASSERT_TRUE(answer->done());
  EXPECT_TRUE(answer->result.status.ok());
  EXPECT_EQ(answer->result.o.size_bytes, 0);
  EXPECT_EQ(backend_.submitted(), 0U);
}

TEST_F(SchedulerTest, RaggedAttendIsOneLaunch) {
  AttentionRequest request = MakeAttend(shape_, 6, 9);
  request.attend_sequences = {{1, 4, 3, 0}, {0, 2, 2, 0}, {5, 3, -2, 0}};
  const auto answer = Submit(std::move(request));
  ASSERT_EQ(backend_.waiting(), 1U);
  const Batch& batch = backend_.front();
  ASSERT_EQ(batch.items.size(), 2U);
  EXPECT_EQ(batch.items[1].attention.query_length, 5);
  EXPECT_EQ(batch.items[1].q.offset_bytes, 1 * 2 * 32 * 4);
  EXPECT_EQ(batch.items[1].k.offset_bytes, 6 * 32 * 4);
  backend_.CompleteAll();
  EXPECT_TRUE(answer->result.status.ok());
}

TEST_F(SchedulerTest, HundredThousandSequencesAreServedInBoundedBatches) {
  AttentionRequest request = MakeAttend(shape_, 1, 1);
  constexpr int kSequences = 100'000;
  request.q = MakeTensor(std::vector<float>(1), {kSequences, 2, 32});
  request.attend_sequences.assign(kSequences, {1, 1, 0, 0});
  const auto answer = Submit(std::move(request));
  std::size_t served = 0;
  while (backend_.waiting() > 0) {
    EXPECT_LE(backend_.front().items.size(), 256U);
    served += backend_.front().items.size();
    backend_.Complete();
  }
  EXPECT_EQ(served, 100'000U);
  EXPECT_TRUE(answer->done());
}

TEST_F(SchedulerTest, DeviceFaultAnswersItsCallsInternalAndAllOthersUnavailable) {
  const auto met = Submit(MakeAttend(shape_, 1, 4));
  Submit(MakeAttend(shape_, 1, 4));
  const auto queued = Submit(MakeAttend(shape_, 1, 4));
  backend_.Complete(absl::InternalError("broken"));
  EXPECT_EQ(CodeOf(met), absl::StatusCode::kInternal);
  EXPECT_EQ(ReasonOf(met), v1::REASON_DEVICE_FAULT);
  ASSERT_TRUE(queued->done());
  EXPECT_EQ(CodeOf(queued), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(queued), v1::REASON_DEVICE_FAULT);
  EXPECT_TRUE(scheduler().GetSnapshot().device_fault);
  const auto later = Submit(MakeAttend(shape_, 1, 4));
  EXPECT_EQ(CodeOf(later), absl::StatusCode::kUnavailable);
  EXPECT_EQ(scheduler().CreateSequence(MakeSequenceSpec(shape_)).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(backend_.submitted(), 2U);
}

TEST_F(SchedulerTest, WorkspaceBeyondTheBackendsIsRefusedAtAdmission) {
  backend_.mutable_limits().workspace_bytes = 16;
  AttentionRequest request = MakeAttend(shape_, 300, 300);
  request.execution.algorithm = Algorithm::kNaive;
  const auto answer = Submit(std::move(request));
  ASSERT_TRUE(answer->done());
  EXPECT_EQ(CodeOf(answer), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(answer), v1::REASON_WORKSPACE);
}

TEST_F(SchedulerTest, StopRefusesNewWorkAndFinishesTheRest) {
  Occupy();
  const auto queued = Submit(MakeAttend(shape_, 1, 4));
  scheduler().BeginStop();
  const auto refused = Submit(MakeAttend(shape_, 1, 4));
  EXPECT_EQ(CodeOf(refused), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(refused), v1::REASON_DRAINING);
  EXPECT_FALSE(scheduler().Idle());
  backend_.CompleteAll();
  EXPECT_TRUE(queued->result.status.ok());
  EXPECT_TRUE(scheduler().Idle());
  scheduler().Drain(seconds(0));
}

TEST_F(SchedulerTest, DrainAnswersWhatIsStillQueuedWhenTimeIsUp) {
  Occupy();
  const auto queued = Submit(MakeAttend(shape_, 1, 4));
  scheduler().BeginStop();
  scheduler().Drain(seconds(0));
  ASSERT_TRUE(queued->done());
  EXPECT_EQ(ReasonOf(queued), v1::REASON_DRAINING);
}

TEST_F(SchedulerTest, EveryRequestIsAnsweredWhenTheSchedulerGoes) {
  Occupy();
  const auto queued = Submit(MakeAttend(shape_, 1, 4));
  Finish();
  EXPECT_EQ(queued->count, 1);
}

TEST_F(SchedulerTest, SnapshotFollowsTheWork) {
  const std::string id = Create();
  EXPECT_EQ(scheduler().GetSnapshot().sequences_idle, 1);
  Decode(id, 0);
  auto snapshot = scheduler().GetSnapshot();
  EXPECT_EQ(snapshot.sequences_active, 1);
  EXPECT_EQ(snapshot.sequences_idle, 0);
  EXPECT_EQ(snapshot.running_requests, 1);
  EXPECT_EQ(snapshot.running_batches, 1);
  EXPECT_EQ(snapshot.pages_used, 1);
  backend_.CompleteAll();
  snapshot = scheduler().GetSnapshot();
  EXPECT_EQ(snapshot.sequences_active, 0);
  EXPECT_EQ(snapshot.running_requests, 0);
  EXPECT_TRUE(Delete({id}).empty());
  snapshot = scheduler().GetSnapshot();
  EXPECT_EQ(snapshot.pages_used, 0);
  EXPECT_EQ(snapshot.slabs_free, snapshot.slabs_total);
  EXPECT_TRUE(scheduler().NoSequences());
}

TEST_F(SchedulerTest, AdvertisedMaxTokensIsWhatThePoolHoldsOfTheNarrowestShape) {
  config_.max_tokens = std::int64_t{1} << 40;
  const std::int64_t most = scheduler().GetSnapshot().max_tokens_effective;
  EXPECT_EQ(most, backend_.limits().pool_bytes / 128);
  CreateSequenceSpec spec = MakeSequenceSpec({1, 1, 32});
  spec.data_type = spec.kv_data_type = kernels::DataType::kFp16;
  spec.max_tokens = most;
  EXPECT_TRUE(scheduler().CreateSequence(spec).ok());
  spec.max_tokens = most + 1;
  EXPECT_EQ(scheduler().CreateSequence(spec).status().code(), absl::StatusCode::kOutOfRange);
}

TEST_F(SchedulerTest, TenantsTakeTurnsWhenOneFloodsTheQueue) {
  config_.max_batch_sequences = 2;
  Occupy();
  for (int i = 0; i < 20; ++i) Submit(MakeAttend(shape_, 1, 4));
  AttentionRequest other = MakeAttend(shape_, 1, 4);
  other.tenant = "other";
  const auto answer = Submit(std::move(other));
  backend_.Complete();
  backend_.Complete();
  backend_.Complete();
  backend_.Complete();
  EXPECT_TRUE(answer->done());  // in the first launch after it came, not the eleventh
}

TEST_F(SchedulerTest, NegativePriorityWaitsBehindNormalWork) {
  config_.max_batch_sequences = 1;
  Occupy();
  AttentionRequest low = MakeAttend(shape_, 1, 4);
  low.execution.priority = -1;
  const auto waits = Submit(std::move(low));
  const auto normal = Submit(MakeAttend(shape_, 1, 4));
  backend_.Complete();
  backend_.Complete();
  backend_.Complete();
  EXPECT_TRUE(normal->done());
  EXPECT_FALSE(waits->done());
  backend_.CompleteAll();
  EXPECT_TRUE(waits->done());
}

}  // namespace
}  // namespace attnd
