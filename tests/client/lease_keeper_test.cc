#include "client/lease_keeper.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tests/support/manual_time.h"

namespace attnd::client {
namespace {

using std::chrono::seconds;

// Records bulk calls and answers them by a rule.
class Renewals {
 public:
  absl::StatusOr<v1::RenewSequencesResponse> operator()(const v1::RenewSequencesRequest& request) {
    const std::lock_guard<std::mutex> lock(mutex_);
    requests_.push_back(request);
    changed_.notify_all();
    if (!failure_.ok()) return failure_;
    v1::RenewSequencesResponse response;
    for (const std::string& id : request.sequence_ids()) {
      if (lost_.count(id) == 0) continue;
      auto* failure = response.add_failures();
      failure->set_sequence_id(id);
      failure->mutable_status()->set_code(lost_[id]);
    }
    return response;
  }
  void Lose(const std::string& id, int code) {
    const std::lock_guard<std::mutex> lock(mutex_);
    lost_[id] = code;
  }
  void FailWith(absl::Status status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    failure_ = std::move(status);
  }
  std::vector<v1::RenewSequencesRequest> Await(std::size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return requests_.size() >= count; });
    return requests_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<v1::RenewSequencesRequest> requests_;
  std::map<std::string, int> lost_;
  absl::Status failure_;
};

class LeaseKeeperTest : public ::testing::Test {
 protected:
  std::unique_ptr<LeaseKeeper> Keep(LeaseKeeperOptions options) {
    return std::make_unique<LeaseKeeper>(
        std::move(options), time_,
        [this](const v1::RenewSequencesRequest& request, Duration) { return renewals_(request); });
  }

  std::shared_ptr<ManualTime> time_ = std::make_shared<ManualTime>(ManualTime::Mode::kManual);
  Renewals renewals_;
};

TEST_F(LeaseKeeperTest, RenewsEverythingInBulkAtEachInterval) {
  const TimePoint start = time_->Now();
  const auto keeper =
      Keep({.lease = seconds(30), .interval = seconds(10), .max_sequences_per_call = 2});
  for (const char* id : {"a", "b", "c"}) keeper->Add(id);
  time_->AwaitWaiter(start + seconds(10));
  time_->Advance(seconds(10));
  const auto first = renewals_.Await(2);
  EXPECT_EQ(first[0].sequence_ids_size(), 2);
  EXPECT_EQ(first[1].sequence_ids_size(), 1);
  EXPECT_EQ(first[0].lease().seconds(), 30);
  time_->AwaitWaiter(start + seconds(20));
  time_->Advance(seconds(10));
  EXPECT_EQ(renewals_.Await(4).size(), 4U);
}

TEST_F(LeaseKeeperTest, SequencesThatAreGoneAreReportedOnceAndDropped) {
  std::vector<std::string> lost;
  const auto keeper = Keep({.on_lost = [&](const std::string& id, const absl::Status& status) {
    lost.push_back(id + ":" + absl::StatusCodeToString(status.code()));
  }});
  keeper->Add("alive");
  keeper->Add("gone");
  keeper->Add("busy");
  renewals_.Lose("gone", 5);
  renewals_.Lose("busy", 8);  // may pass: stays
  EXPECT_TRUE(keeper->RenewNow().ok());
  EXPECT_EQ(lost, std::vector<std::string>{"gone:NOT_FOUND"});
  EXPECT_EQ(keeper->size(), 2);
  EXPECT_TRUE(keeper->RenewNow().ok());
  EXPECT_EQ(lost.size(), 1U);
}

TEST_F(LeaseKeeperTest, AFailedRoundKeepsTheSequencesForTheNext) {
  const TimePoint start = time_->Now();
  const auto keeper = Keep({.interval = seconds(10)});
  keeper->Add("a");
  renewals_.FailWith(absl::UnavailableError("down"));
  EXPECT_EQ(keeper->RenewNow().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(keeper->size(), 1);
  renewals_.FailWith(absl::OkStatus());
  time_->AwaitWaiter(start + seconds(10));
  time_->Advance(seconds(10));
  EXPECT_EQ(renewals_.Await(2)[1].sequence_ids(0), "a");
}

TEST_F(LeaseKeeperTest, RemovedSequencesAreNotRenewed) {
  const auto keeper = Keep({});
  keeper->Add("a");
  keeper->Add("b");
  keeper->Remove("a");
  EXPECT_TRUE(keeper->RenewNow().ok());
  const auto requests = renewals_.Await(1);
  ASSERT_EQ(requests[0].sequence_ids_size(), 1);
  EXPECT_EQ(requests[0].sequence_ids(0), "b");
}

TEST_F(LeaseKeeperTest, AnEmptyKeeperSendsNothing) {
  const auto keeper = Keep({});
  EXPECT_TRUE(keeper->RenewNow().ok());
  EXPECT_TRUE(renewals_.Await(0).empty());
}

}  // namespace
}  // namespace attnd::client
