#include "client/stream_ledger.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace attnd::client {
namespace {

using std::chrono::milliseconds;

const TimePoint kStart = TimePoint(std::chrono::hours(1));

class StreamLedgerTest : public ::testing::Test {
 protected:
  static RetryOptions Options() {
    RetryOptions options;
    options.jitter = 0;
    return options;
  }

  void Add(int number, Duration timeout = std::chrono::seconds(10)) {
    DecodeRequest request;
    request.steps.emplace_back().set_position(number);
    ledger_.Add(std::move(request), kStart + timeout,
                [this, number](absl::StatusOr<DecodeResult> result) {
                  answered_.push_back(std::to_string(number) + ":" +
                                      absl::StatusCodeToString(result.status().code()));
                });
  }
  // The positions of everything that waits to be sent, and their ids in ids_.
  std::vector<int> TakeAll(TimePoint now = kStart) {
    std::vector<int> taken;
    while (const auto next = ledger_.TakeNext(now)) {
      ids_[static_cast<int>(next->request->steps[0].position())] = next->id;
      timeouts_.push_back(next->request->execution.timeout());
      taken.push_back(static_cast<int>(next->request->steps[0].position()));
    }
    return taken;
  }
  void Reply(int number, int code = 0, std::optional<milliseconds> delay = {},
             TimePoint now = kStart) {
    DecodeReply reply;
    reply.request_id = ids_[number];
    reply.status.emplace().set_code(code);
    if (delay) {
      reply.status->mutable_detail()->mutable_retry_delay()->set_nanos(
          static_cast<int>(delay->count()) * 1'000'000);
    }
    StreamLedger::Answers answers;
    ledger_.OnReply(std::move(reply), now, retry_, answers);
    Run(answers);
  }
  void RunTimers(TimePoint now) {
    StreamLedger::Answers answers;
    ledger_.RunTimers(now, answers);
    Run(answers);
  }
  static void Run(StreamLedger::Answers& answers) {
    for (auto& answer : answers) answer.done(std::move(answer.result));
  }

  RetryPolicy retry_{Options(), 1};
  StreamLedger ledger_;
  std::map<int, std::uint64_t> ids_;
  std::vector<google::protobuf::Duration> timeouts_;
  std::vector<std::string> answered_;
};

TEST_F(StreamLedgerTest, RequestsGoOutInOrderAndAreAnsweredOnce) {
  Add(1);
  Add(2);
  EXPECT_EQ(TakeAll(), (std::vector<int>{1, 2}));
  Reply(2);
  Reply(1);
  Reply(1);
  EXPECT_EQ(answered_, (std::vector<std::string>{"2:OK", "1:OK"}));
  EXPECT_EQ(ledger_.size(), 0);
  EXPECT_EQ(ledger_.NextTimer(), TimeSource::kNever);
}

TEST_F(StreamLedgerTest, ABrokenStreamSendsUnansweredRequestsAgainInOrder) {
  for (int i = 1; i <= 4; ++i) Add(i);
  TakeAll();
  Add(5);
  Reply(2);
  ledger_.OnBroken(absl::UnavailableError("lost"));
  EXPECT_EQ(TakeAll(), (std::vector<int>{1, 3, 4, 5}));
}

TEST_F(StreamLedgerTest, ADelayedRequestIsReleasedWhenItsTimeHasCome) {
  Add(1);
  TakeAll();
  Reply(1, 8, milliseconds(300));
  EXPECT_FALSE(ledger_.has_unsent());
  EXPECT_EQ(ledger_.NextTimer(), kStart + milliseconds(300));
  RunTimers(kStart + milliseconds(299));
  EXPECT_FALSE(ledger_.has_unsent());
  RunTimers(kStart + milliseconds(300));
  EXPECT_EQ(TakeAll(), (std::vector<int>{1}));
  Reply(1);
  EXPECT_EQ(answered_, (std::vector<std::string>{"1:OK"}));
}

TEST_F(StreamLedgerTest, ARequestThatWaitsForItsRetrySurvivesABreakWithoutBeingSentEarly) {
  Add(1);
  Add(2);
  TakeAll();
  Reply(1, 8, milliseconds(300));
  ledger_.OnBroken(absl::UnavailableError("lost"));
  EXPECT_EQ(TakeAll(), (std::vector<int>{2}));
  RunTimers(kStart + milliseconds(300));
  EXPECT_EQ(TakeAll(), (std::vector<int>{1}));
}

TEST_F(StreamLedgerTest, FinalStatusesAreAnswers) {
  Add(1);
  Add(2);
  TakeAll();
  Reply(1, 9);
  Reply(2, 8);  // no delay: do not retry
  EXPECT_EQ(answered_, (std::vector<std::string>{"1:FAILED_PRECONDITION", "2:RESOURCE_EXHAUSTED"}));
}

TEST_F(StreamLedgerTest, DeadlinesEndRequestsInEveryState) {
  Add(1, milliseconds(100));  // sent
  Add(2, milliseconds(200));  // waits for its retry
  TakeAll();
  Add(3, milliseconds(300));  // never sent
  Reply(2, 8, milliseconds(150));
  EXPECT_EQ(ledger_.NextTimer(), kStart + milliseconds(100));
  RunTimers(kStart + milliseconds(100));
  RunTimers(kStart + milliseconds(500));
  EXPECT_EQ(answered_, (std::vector<std::string>{"1:DEADLINE_EXCEEDED", "2:DEADLINE_EXCEEDED",
                                                 "3:DEADLINE_EXCEEDED"}));
  Reply(1);
  EXPECT_EQ(answered_.size(), 3U) << "a late reply must not answer twice";
  EXPECT_FALSE(ledger_.has_unsent());
}

TEST_F(StreamLedgerTest, NoRetryIsPlannedPastTheDeadline) {
  Add(1, milliseconds(100));
  TakeAll();
  Reply(1, 8, milliseconds(100));
  EXPECT_EQ(answered_, (std::vector<std::string>{"1:RESOURCE_EXHAUSTED"}));
}

TEST_F(StreamLedgerTest, TheServerLearnsWhatIsLeftOfTheDeadline) {
  Add(1, std::chrono::seconds(10));
  TakeAll(kStart + milliseconds(2500));
  ASSERT_EQ(timeouts_.size(), 1U);
  EXPECT_EQ(timeouts_[0].seconds(), 7);
  EXPECT_EQ(timeouts_[0].nanos(), 500'000'000);
}

TEST_F(StreamLedgerTest, FailingAllAnswersEverything) {
  Add(1);
  TakeAll();
  Add(2);
  StreamLedger::Answers answers;
  ledger_.FailAll(absl::CancelledError(""), answers);
  Run(answers);
  EXPECT_EQ(answered_, (std::vector<std::string>{"1:CANCELLED", "2:CANCELLED"}));
  EXPECT_EQ(ledger_.size(), 0);
  EXPECT_FALSE(ledger_.has_unsent());
}

}  // namespace
}  // namespace attnd::client
