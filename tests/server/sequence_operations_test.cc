// Create, fork, truncate, delete, renew and expiry, alone and around waiting steps.
#include <gmock/gmock.h>

#include "tests/support/engine_fixture.h"

namespace attnd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class SequenceOperationsTest : public EngineTest {
 protected:
  void Occupy() {
    for (int i = 0; i < 2; ++i) Submit(MakeAttend(HeadShape{4, 4, 64}, 1, 4));
    ASSERT_EQ(backend_.waiting(), 2U);
  }
  absl::Status Find(const std::string& id, const std::string& tenant = "default") {
    return scheduler().GetSequence(tenant, id).status();
  }
  std::int64_t PagesUsed() { return scheduler().GetSnapshot().pages_used; }
  static std::string Key(char c) { return std::string(16, c); }
};

TEST_F(SequenceOperationsTest, SameCreationKeyGivesTheSameSequence) {
  CreateSequenceSpec spec = MakeSequenceSpec(shape_);
  spec.creation_key = Key('a');
  spec.request_bytes = "one";
  const std::string id = CreateFrom(spec);
  EXPECT_EQ(CreateFrom(spec), id);
  spec.request_bytes = "two";
  const auto other = scheduler().CreateSequence(spec);
  EXPECT_EQ(other.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ReasonOf(other.status()), v1::REASON_CREATION_KEY);
  spec.tenant = "other";  // keys are each tenant's own
  EXPECT_TRUE(scheduler().CreateSequence(spec).ok());
}

TEST_F(SequenceOperationsTest, CreationKeyIsFreeAgainWhenItsSequenceHasEnded) {
  CreateSequenceSpec spec = MakeSequenceSpec(shape_);
  spec.creation_key = Key('a');
  const std::string id = CreateFrom(spec);
  Delete({id});
  EXPECT_NE(CreateFrom(spec), id);
}

TEST_F(SequenceOperationsTest, SequencesBeyondTheLimitAreRefusedAndSlotsComeBack) {
  config_.max_sequences = 2;
  const std::string id = Create();
  Create();
  const auto third = scheduler().CreateSequence(MakeSequenceSpec(shape_));
  EXPECT_EQ(third.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(third.status()), v1::REASON_QUOTA);
  EXPECT_TRUE(Delete({id}).empty());
  Create();
  EXPECT_FALSE(scheduler().CreateSequence(MakeSequenceSpec(shape_)).ok());
}

TEST_F(SequenceOperationsTest, EndingsAreRemembered) {
  const std::string deleted = Create();
  Delete({deleted});
  EXPECT_EQ(ReasonOf(Find(deleted)), v1::REASON_DELETED);
  EXPECT_EQ(ReasonOf(Find(deleted, "other")), v1::REASON_UNKNOWN_SEQUENCE);
  const std::string expired = Create();
  clock_.Advance(config_.default_lease);
  scheduler().RunDueWork();
  EXPECT_EQ(ReasonOf(Find(expired)), v1::REASON_EXPIRED);
  std::string restarted = deleted;
  restarted[5] = static_cast<char>(restarted[5] ^ 1);
  EXPECT_EQ(ReasonOf(Find(restarted)), v1::REASON_SERVER_RESTARTED);
  EXPECT_EQ(Find(restarted).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Find("short").code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SequenceOperationsTest, LeaseEndsWhenNothingUsesTheSequence) {
  CreateSequenceSpec spec = MakeSequenceSpec(shape_);
  spec.lease = seconds(1);
  const std::string used = CreateFrom(spec);
  const std::string idle = CreateFrom(spec);
  for (int i = 0; i < 12; ++i) {
    clock_.Advance(milliseconds(400));
    Fill(used, i, 1);
    scheduler().RunDueWork();
  }
  EXPECT_TRUE(Find(used).ok());
  EXPECT_EQ(ReasonOf(Find(idle)), v1::REASON_EXPIRED);
  clock_.Advance(seconds(1));
  scheduler().RunDueWork();
  EXPECT_EQ(ReasonOf(Find(used)), v1::REASON_EXPIRED);
  EXPECT_EQ(PagesUsed(), 0);
}

TEST_F(SequenceOperationsTest, LeaseNeverEndsUnderAStep) {
  CreateSequenceSpec spec = MakeSequenceSpec(shape_);
  spec.lease = seconds(1);
  const std::string id = CreateFrom(spec);
  Decode(id, 0);
  clock_.Advance(seconds(100));
  scheduler().RunDueWork();
  EXPECT_TRUE(Find(id).ok());
  backend_.CompleteAll();  // the answer starts the lease anew
  clock_.Advance(milliseconds(999));
  scheduler().RunDueWork();
  EXPECT_TRUE(Find(id).ok());
  clock_.Advance(seconds(1));
  scheduler().RunDueWork();
  EXPECT_FALSE(Find(id).ok());
}

TEST_F(SequenceOperationsTest, LeaseIsClippedAndRenewed) {
  CreateSequenceSpec spec = MakeSequenceSpec(shape_);
  spec.lease = std::chrono::hours(100);
  const auto grant = scheduler().CreateSequence(spec);
  ASSERT_TRUE(grant.ok());
  EXPECT_EQ(grant->lease, config_.max_lease);
  const std::string id = grant->sequence_id;
  EXPECT_TRUE(scheduler().RenewSequences("default", {id}, seconds(2)).empty());
  clock_.Advance(seconds(1));
  EXPECT_EQ(scheduler().GetSequence("default", id)->lease_remaining, seconds(1));
  clock_.Advance(seconds(1));
  scheduler().RunDueWork();
  EXPECT_EQ(ReasonOf(Find(id)), v1::REASON_EXPIRED);
  const auto failures = scheduler().RenewSequences("default", {id}, std::nullopt);
  ASSERT_EQ(failures.size(), 1U);
  EXPECT_EQ(ReasonOf(failures[0].status), v1::REASON_EXPIRED);
}

TEST_F(SequenceOperationsTest, LookingDoesNotRestartALease) {
  CreateSequenceSpec spec = MakeSequenceSpec(shape_);
  spec.lease = seconds(1);
  const std::string id = CreateFrom(spec);
  clock_.Advance(milliseconds(600));
  EXPECT_TRUE(Find(id).ok());
  EXPECT_TRUE(scheduler().ListSequences("default", 0, "").ok());
  clock_.Advance(milliseconds(400));
  scheduler().RunDueWork();
  EXPECT_FALSE(Find(id).ok());
}

TEST_F(SequenceOperationsTest, ForkSharesPagesUntilOneSideWrites) {
  config_.page_tokens = 16;
  const std::string parent = Create();
  Fill(parent, 0, 37);
  EXPECT_EQ(PagesUsed(), 3);
  const auto fork = Fork(parent);
  ASSERT_TRUE(fork->has_value() && (*fork)->ok());
  const std::string child = (**fork)->sequence_id;
  EXPECT_EQ(PagesUsed(), 3);
  EXPECT_EQ(scheduler().GetSnapshot().pages_shared, 3);
  EXPECT_EQ(Length(child), 37);

  Decode(child, 37);
  const Batch& batch = backend_.front();
  ASSERT_EQ(batch.copies.size(), 1U);  // the partly filled page
  EXPECT_EQ(batch.page_tables[2], batch.copies[0].to);
  backend_.CompleteAll();
  EXPECT_EQ(PagesUsed(), 4);
  EXPECT_EQ(scheduler().GetSnapshot().pages_shared, 2);

  Decode(parent, 37);  // holds the original alone now
  EXPECT_TRUE(backend_.front().copies.empty());
  backend_.CompleteAll();
  EXPECT_EQ(Length(parent), 38);
  Delete({parent, child});
  EXPECT_EQ(PagesUsed(), 0);
}

TEST_F(SequenceOperationsTest, OriginalOfACopyIsHeldUntilTheCopyIsMade) {
  config_.page_tokens = 16;
  const std::string parent = Create();
  Fill(parent, 0, 8);
  const auto fork = Fork(parent);
  const std::string child = (**fork)->sequence_id;
  Decode(parent, 8);
  Decode(child, 8);
  // Both copy: neither may write the page while the other's copy is outstanding.
  EXPECT_EQ(backend_.at(0).copies.size(), 1U);
  EXPECT_EQ(backend_.at(1).copies.size(), 1U);
  backend_.CompleteAll();
  EXPECT_EQ(PagesUsed(), 2);
}

TEST_F(SequenceOperationsTest, ForkOfFullPagesNeedsNoCopy) {
  config_.page_tokens = 16;
  const std::string parent = Create();
  Fill(parent, 0, 32);
  const std::string child = (**Fork(parent))->sequence_id;
  Decode(child, 32);
  EXPECT_TRUE(backend_.front().copies.empty());
}

TEST_F(SequenceOperationsTest, ForkCutsEachLayerToTheSmaller) {
  const std::string parent = Create(2);
  Fill(parent, 0, 20, 0, 0);
  Fill(parent, 0, 5, 7, 1);
  const std::string child = (**Fork(parent, 10))->sequence_id;
  EXPECT_EQ(Length(child, 0), 10);
  EXPECT_EQ(Length(child, 1), 5);
  EXPECT_EQ(scheduler().GetSequence("default", child)->layer_epochs[1], 7U);
  const auto too_long = Fork(parent, 21);
  ASSERT_TRUE(too_long->has_value());
  EXPECT_EQ((*too_long)->status().code(), absl::StatusCode::kOutOfRange);
}

TEST_F(SequenceOperationsTest, ForkWaitsForStepsAdmittedBeforeIt) {
  const std::string parent = Create();
  Occupy();
  Decode(parent, 0, 3);
  const auto fork = Fork(parent);
  const auto after = Decode(parent, 3);
  EXPECT_FALSE(fork->has_value());
  backend_.CompleteAll();
  ASSERT_TRUE(fork->has_value() && (*fork)->ok());
  EXPECT_EQ(Length((**fork)->sequence_id), 3);
  EXPECT_TRUE(after->result.status.ok());
  EXPECT_EQ(Length(parent), 4);
}

TEST_F(SequenceOperationsTest, ForkOnStepsThatDidNotRunIsAborted) {
  const std::string parent = Create();
  Occupy();
  Decode(parent, 0, 3);
  const Ticket step = last_ticket_;
  const auto fork = Fork(parent, 3);
  scheduler().Cancel(step);
  ASSERT_TRUE(fork->has_value());
  EXPECT_EQ((*fork)->status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ReasonOf((*fork)->status()), v1::REASON_PREDECESSOR);
}

TEST_F(SequenceOperationsTest, RepeatedForkGivesTheSameChildEvenWhileItWaits) {
  const std::string parent = Create();
  Occupy();
  Decode(parent, 0);
  ForkSequenceSpec spec;
  spec.tenant = "default";
  spec.sequence_id = parent;
  spec.creation_key = Key('f');
  spec.request_bytes = "fork";
  const auto first = Fork(spec);
  const auto again = Fork(spec);
  ForkSequenceSpec other = spec;
  other.request_bytes = "another";
  EXPECT_EQ((*Fork(other))->status().code(), absl::StatusCode::kAlreadyExists);
  backend_.CompleteAll();
  const auto later = Fork(spec);
  ASSERT_TRUE((*first)->ok() && (*again)->ok() && (*later)->ok());
  EXPECT_EQ((**first)->sequence_id, (**again)->sequence_id);
  EXPECT_EQ((**first)->sequence_id, (**later)->sequence_id);
}

TEST_F(SequenceOperationsTest, ReservationsSurviveAFork) {
  config_.page_tokens = 16;
  CreateSequenceSpec spec = MakeSequenceSpec(shape_);
  spec.reserve_tokens = 32;
  spec.max_tokens = 32'768;  // all that the pool holds
  const std::string parent = CreateFrom(spec);
  Fill(parent, 0, 20);
  ASSERT_TRUE((*Fork(parent))->ok());
  spec.reserve_tokens = 0;
  const std::string hog = CreateFrom(spec);
  const std::int64_t free_pages = 2048 - PagesUsed();
  Fill(hog, 0, static_cast<std::int32_t>(free_pages * 16));
  Fill(parent, 20, 12);    // a copy of the shared page, from the reserve
  Fill(parent, 0, 32, 1);  // and a rollback over shared pages
  EXPECT_EQ(Length(parent), 32);
}

// A fork makes the partly filled page shared: the step behind it needs a copy, and has it set aside
// when it is admitted, while the fork still waits.
TEST_F(SequenceOperationsTest, AStepBehindAWaitingForkHasItsCopySetAside) {
  config_.page_tokens = 16;
  const std::string parent = Create();
  Fill(parent, 0, 8);
  Occupy();
  Decode(parent, 8);
  const std::int64_t before = PagesUsed();
  const auto fork = Fork(parent);
  EXPECT_FALSE(fork->has_value());
  const auto behind = Decode(parent, 9);
  EXPECT_EQ(PagesUsed(), before + 1);
  backend_.CompleteAll();
  ASSERT_TRUE((*fork)->ok());
  EXPECT_TRUE(behind->result.status.ok());
  EXPECT_EQ(Length((**fork)->sequence_id), 9);
  EXPECT_EQ(Length(parent), 10);
  EXPECT_EQ(PagesUsed(), 2);
}

TEST_F(SequenceOperationsTest, AStepBehindAWaitingForkIsRefusedWhereNoCopyFits) {
  config_.page_tokens = 16;
  CreateSequenceSpec spec = MakeSequenceSpec(shape_);
  spec.max_tokens = 32'768;
  const std::string parent = Create();
  Fill(parent, 0, 8);
  Fill(CreateFrom(spec), 0, 32'768 - 16);  // every other page
  Occupy();
  Decode(parent, 8);
  const auto fork = Fork(parent);
  const auto behind = Decode(parent, 9);
  ASSERT_TRUE(behind->done());
  EXPECT_EQ(ReasonOf(behind), v1::REASON_CACHE_FULL);
  backend_.CompleteAll();
  EXPECT_TRUE((*fork)->ok());
}

TEST_F(SequenceOperationsTest, AForkMakesItsParentsReserveWholeAgain) {
  config_.page_tokens = 16;
  CreateSequenceSpec spec = MakeSequenceSpec(shape_);
  spec.reserve_tokens = 64;
  const std::string parent = CreateFrom(spec);
  EXPECT_EQ(PagesUsed(), 4);
  Fill(parent, 0, 40);  // three of the four
  EXPECT_EQ(PagesUsed(), 4);
  EXPECT_EQ(scheduler().GetSnapshot().reserved_bytes, 4096);
  ASSERT_TRUE((*Fork(parent))->ok());
  EXPECT_EQ(PagesUsed(), 7) << "what it holds is shared now: four more are promised";
  EXPECT_EQ(scheduler().GetSnapshot().reserved_bytes, 4 * 4096);
}

TEST_F(SequenceOperationsTest, AForkIsRefusedWhereItsParentsReserveDoesNotFit) {
  config_.page_tokens = 16;
  CreateSequenceSpec spec = MakeSequenceSpec(shape_);
  spec.reserve_tokens = 32;
  const std::string parent = CreateFrom(spec);
  Fill(parent, 0, 32);
  CreateSequenceSpec hog = MakeSequenceSpec(shape_);
  hog.max_tokens = 32'768;
  Fill(CreateFrom(hog), 0, 32'768 - 3 * 16);  // one page is left, two are needed
  EXPECT_EQ(ReasonOf((*Fork(parent))->status()), v1::REASON_CACHE_FULL);
  EXPECT_EQ(scheduler().GetSnapshot().pages_shared, 0);
  Fill(parent, 0, 32, 1);  // the parent goes on with its own pages
}

TEST_F(SequenceOperationsTest, TruncateCutsLayersAndNeedsALargerEpoch) {
  config_.page_tokens = 16;
  const std::string id = Create(2);
  Fill(id, 0, 40, 1, 0);
  Fill(id, 0, 8, 1, 1);
  auto stale = Truncate(id, 16, 1);
  ASSERT_EQ((*stale)->size(), 1U);
  EXPECT_EQ(ReasonOf((**stale)[0].status), v1::REASON_STALE_EPOCH);
  EXPECT_TRUE((*Truncate(id, 16, 2))->empty());
  EXPECT_EQ(Length(id, 0), 16);
  EXPECT_EQ(Length(id, 1), 8);
  EXPECT_EQ(PagesUsed(), 2);
  Fill(id, 16, 1, 2, 0);
  EXPECT_TRUE((*Truncate(id, 16, 2))->empty());  // a late repeat: OK, and does nothing
  EXPECT_EQ(Length(id, 0), 17);
  EXPECT_EQ(ReasonOf((**Truncate(id, 10, 2))[0].status), v1::REASON_STALE_EPOCH);
}

TEST_F(SequenceOperationsTest, TruncateWaitsForStepsBeforeItAndHoldsThoseAfter) {
  const std::string id = Create();
  Occupy();
  Decode(id, 0, 10);
  const auto truncate = Truncate(id, 4, 1);
  const auto after = Decode(id, 4, 1, 1);
  EXPECT_FALSE(truncate->has_value());
  backend_.Complete();
  backend_.Complete();
  EXPECT_FALSE(after->done());
  backend_.CompleteAll();
  ASSERT_TRUE(truncate->has_value());
  EXPECT_TRUE((*truncate)->empty());
  EXPECT_TRUE(after->result.status.ok());
  EXPECT_EQ(Length(id), 5);
}

TEST_F(SequenceOperationsTest, CancelBeforeATruncateKeepsWhatFollowsIt) {
  const std::string id = Create();
  Fill(id, 0, 10);
  Occupy();
  Decode(id, 10, 2);
  const Ticket step = last_ticket_;
  const auto truncate = Truncate(id, 4, 1);
  const auto after = Decode(id, 4, 1, 1);
  scheduler().Cancel(step);
  EXPECT_TRUE(truncate->has_value());
  backend_.CompleteAll();
  EXPECT_TRUE(after->result.status.ok()) << after->result.status;
  EXPECT_EQ(Length(id), 5);
}

TEST_F(SequenceOperationsTest, DeleteAnswersWaitingStepsAndWaitsForRunningOnes) {
  const std::string id = Create();
  Submit(MakeAttend(HeadShape{4, 4, 64}, 1, 4));
  const auto running = Decode(id, 0);
  const auto waiting = Decode(id, 1);
  std::optional<std::vector<SequenceFailureValue>> deleted;
  scheduler().DeleteSequences("default", {id},
                              [&](std::vector<SequenceFailureValue> f) { deleted = f; });
  ASSERT_TRUE(waiting->done());
  EXPECT_EQ(CodeOf(waiting), absl::StatusCode::kAborted);
  EXPECT_EQ(ReasonOf(waiting), v1::REASON_SEQUENCE_ENDED);
  EXPECT_EQ(ReasonOf(Decode(id, 1)), v1::REASON_DELETED);
  EXPECT_FALSE(deleted.has_value());
  EXPECT_EQ(PagesUsed(), 1);
  backend_.CompleteAll();
  EXPECT_TRUE(running->result.status.ok());
  ASSERT_TRUE(deleted.has_value());
  EXPECT_TRUE(deleted->empty());
  EXPECT_EQ(PagesUsed(), 0);
  EXPECT_TRUE(scheduler().NoSequences());
}

TEST_F(SequenceOperationsTest, DeleteEndsWaitingForksAndTruncations) {
  const std::string id = Create();
  Decode(id, 0);
  const auto truncate = Truncate(id, 0, 1);
  const auto fork = Fork(id);
  scheduler().DeleteSequences("default", {id}, [](std::vector<SequenceFailureValue>) {});
  ASSERT_TRUE(truncate->has_value() && fork->has_value());
  EXPECT_EQ(ReasonOf((**truncate)[0].status), v1::REASON_SEQUENCE_ENDED);
  EXPECT_EQ(ReasonOf((*fork)->status()), v1::REASON_SEQUENCE_ENDED);
}

TEST_F(SequenceOperationsTest, DeleteDuringAPromptStopsItAfterItsChunk) {
  config_.prefill_chunk_time = Milliseconds{0};
  const std::string id = Create();
  const auto prompt = Decode(id, 0, 300);
  scheduler().DeleteSequences("default", {id}, [](std::vector<SequenceFailureValue>) {});
  EXPECT_FALSE(prompt->done());
  backend_.Complete();
  EXPECT_EQ(ReasonOf(prompt), v1::REASON_SEQUENCE_ENDED);
  EXPECT_EQ(backend_.waiting(), 0U);
  EXPECT_EQ(PagesUsed(), 0);
}

TEST_F(SequenceOperationsTest, CancelledStepAndExpiryReleaseTheSlotOnce) {
  config_.max_sequences = 2;
  CreateSequenceSpec spec = MakeSequenceSpec(shape_);
  spec.lease = seconds(1);
  const std::string first = CreateFrom(spec);
  Decode(first, 0);
  scheduler().Cancel(last_ticket_);
  backend_.CompleteAll();
  clock_.Advance(seconds(2));
  scheduler().RunDueWork();
  const std::string second = CreateFrom(spec);
  const std::string third = CreateFrom(spec);
  EXPECT_NE(second, third);
  EXPECT_FALSE(scheduler().CreateSequence(spec).ok());
  Fill(second, 0, 1);
  Fill(third, 0, 1);
}

TEST_F(SequenceOperationsTest, ListGoesPageByPageThroughTheTenantsOwn) {
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(Create());
  CreateSequenceSpec other = MakeSequenceSpec(shape_);
  other.tenant = "other";
  CreateFrom(other);
  std::vector<std::string> listed;
  std::string token;
  do {
    const auto list = scheduler().ListSequences("default", 2, token);
    ASSERT_TRUE(list.ok());
    EXPECT_LE(list->sequences.size(), 2U);
    for (const auto& info : list->sequences) listed.push_back(info.sequence_id);
    token = list->next_page_token;
  } while (!token.empty());
  EXPECT_THAT(listed, testing::UnorderedElementsAreArray(ids));
  EXPECT_EQ(scheduler().ListSequences("default", 2, "nonsense").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(SequenceOperationsTest, RetireRefusesNewSequencesAndCapsLeases) {
  const std::string id = Create();
  scheduler().BeginRetire();
  const auto refused = scheduler().CreateSequence(MakeSequenceSpec(shape_));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(refused.status()), v1::REASON_DRAINING);
  EXPECT_FALSE(ErrorDetailOf(refused.status()).has_retry_delay()) << "it never ends";
  const absl::Status fork = (*Fork(id))->status();
  EXPECT_EQ(ReasonOf(fork), v1::REASON_DRAINING);
  EXPECT_FALSE(ErrorDetailOf(fork).has_retry_delay());
  Fill(id, 0, 1);
  scheduler().RenewSequences("default", {id}, std::chrono::hours(1));
  EXPECT_LE(scheduler().GetSequence("default", id)->lease_remaining, config_.retire_limit);
  clock_.Advance(config_.retire_limit);
  scheduler().RunDueWork();
  EXPECT_TRUE(scheduler().NoSequences());
}

// Whatever asks for more once the server retires: creation, renewal, an answered step.
TEST_F(SequenceOperationsTest, NoLeaseOutlivesTheRetirement) {
  config_.retire_limit = Milliseconds(10'000);
  const auto lease_of = [&](const std::string& id) {
    return scheduler().GetSequence("default", id)->lease_remaining;
  };
  const auto with_lease = [&](Clock::Duration lease) {
    CreateSequenceSpec spec = MakeSequenceSpec(shape_);
    spec.lease = lease;
    return CreateFrom(spec);
  };
  const std::string long_lived = with_lease(seconds(600));
  const std::string short_lived = with_lease(seconds(3));
  scheduler().BeginRetire();
  EXPECT_EQ(lease_of(long_lived), seconds(10));
  EXPECT_EQ(lease_of(short_lived), seconds(3)) << "not made longer";
  clock_.Advance(seconds(2));
  EXPECT_TRUE(scheduler().RenewSequences("default", {short_lived}, seconds(600)).empty());
  EXPECT_EQ(lease_of(short_lived), seconds(8));
  Fill(long_lived, 0, 1);
  EXPECT_EQ(lease_of(long_lived), seconds(8));
  clock_.Advance(seconds(8) - Milliseconds(1));
  scheduler().RunDueWork();
  EXPECT_TRUE(Find(long_lived).ok() && Find(short_lived).ok());
  clock_.Advance(Milliseconds(1));
  scheduler().RunDueWork();
  EXPECT_TRUE(scheduler().NoSequences());
}

TEST_F(SequenceOperationsTest, PeersAreNamedForSequencesOfOtherServers) {
  config_.peers = {"east=10.0.0.1:8001"};
  ServerConfig east = config_;
  east.server_name = "east";
  PuppetBackend backend;
  std::string id;
  {
    Scheduler other(east, "key2", clock_, backend, metrics_);
    id = other.CreateSequence(MakeSequenceSpec(shape_))->sequence_id;
  }
  const absl::Status status = Find(id);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  const v1::ErrorDetail detail = ErrorDetailOf(status);
  EXPECT_EQ(detail.reason(), v1::REASON_OTHER_SERVER);
  EXPECT_EQ(detail.server(), "east");
  EXPECT_EQ(detail.address(), "10.0.0.1:8001");
}

TEST_F(SequenceOperationsTest, PageThatFitsNoSlabIsRefused) {
  config_.page_tokens = 256;
  const auto grant = scheduler().CreateSequence(MakeSequenceSpec(HeadShape{64, 64, 256}));
  EXPECT_EQ(grant.status().code(), absl::StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace attnd
