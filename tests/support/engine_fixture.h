// A scheduler with a clock and a backend that the test moves by hand.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/error_status.h"
#include "server/metrics.h"
#include "server/scheduler.h"
#include "server/server_config.h"
#include "tests/support/engine_requests.h"
#include "tests/support/fake_clock.h"
#include "tests/support/puppet_backend.h"

namespace attnd {

class EngineTest : public testing::Test {
 protected:
  using AnswerPtr = std::shared_ptr<Answer>;

  EngineTest() : metrics_(BuildInfo{}, "puppet", clock_) {}
  ~EngineTest() override { Finish(); }

  // Tests change config_ and backend_ first, then call this (or anything that needs it).
  Scheduler& scheduler() {
    if (!scheduler_) {
      scheduler_ = std::make_unique<Scheduler>(config_, "key1", clock_, backend_, metrics_);
    }
    return *scheduler_;
  }
  void Finish() {
    backend_.CompleteAll();
    scheduler_.reset();
  }

  std::string Create(std::int32_t num_layers = 1) {
    return CreateFrom(MakeSequenceSpec(shape_, num_layers));
  }
  std::string CreateFrom(const CreateSequenceSpec& spec) {
    const auto grant = scheduler().CreateSequence(spec);
    EXPECT_TRUE(grant.ok()) << grant.status();
    return grant.ok() ? grant->sequence_id : std::string();
  }

  AnswerPtr Submit(AttentionRequest request) {
    auto answer = std::make_shared<Answer>();
    request.on_done = CatchAnswer(answer);
    last_ticket_ = scheduler().Submit(std::move(request));
    return answer;
  }
  AnswerPtr Decode(std::vector<DecodeStep> steps) {
    return Submit(MakeDecode(shape_, std::move(steps)));
  }
  AnswerPtr Decode(const std::string& id, std::int64_t position, std::int32_t num_tokens = 1,
                   std::uint64_t epoch = 0, std::int32_t layer = 0) {
    return Decode({MakeStep(id, position, num_tokens, epoch, layer)});
  }
  // Appends `num_tokens` and runs the launch.
  void Fill(const std::string& id, std::int64_t position, std::int32_t num_tokens,
            std::uint64_t epoch = 0, std::int32_t layer = 0) {
    const AnswerPtr answer = Decode(id, position, num_tokens, epoch, layer);
    backend_.CompleteAll();
    ASSERT_TRUE(answer->done());
    ASSERT_TRUE(answer->result.status.ok()) << answer->result.status;
  }

  std::vector<SequenceFailureValue> Delete(std::vector<std::string> ids) {
    std::vector<SequenceFailureValue> failures;
    scheduler().DeleteSequences("default", std::move(ids),
                                [&](std::vector<SequenceFailureValue> f) { failures = f; });
    backend_.CompleteAll();
    return failures;
  }

  using TruncateAnswer = std::optional<std::vector<SequenceFailureValue>>;
  std::shared_ptr<TruncateAnswer> Truncate(const std::string& id, std::int64_t num_tokens,
                                           std::uint64_t epoch) {
    auto answer = std::make_shared<TruncateAnswer>();
    scheduler().TruncateSequences("default", {id}, num_tokens, epoch,
                                  [answer](std::vector<SequenceFailureValue> f) { *answer = f; });
    return answer;
  }

  using ForkAnswer = std::optional<absl::StatusOr<SequenceGrant>>;
  std::shared_ptr<ForkAnswer> Fork(const std::string& id,
                                   std::optional<std::int64_t> num_tokens = std::nullopt) {
    ForkSequenceSpec spec;
    spec.tenant = "default";
    spec.sequence_id = id;
    spec.num_tokens = num_tokens;
    return Fork(std::move(spec));
  }
  std::shared_ptr<ForkAnswer> Fork(ForkSequenceSpec spec) {
    auto answer = std::make_shared<ForkAnswer>();
    scheduler().ForkSequence(std::move(spec),
                             [answer](absl::StatusOr<SequenceGrant> g) { *answer = std::move(g); });
    return answer;
  }

  std::int64_t Length(const std::string& id, std::size_t layer = 0) {
    const auto info = scheduler().GetSequence("default", id);
    EXPECT_TRUE(info.ok()) << info.status();
    return info.ok() ? info->layer_tokens[layer] : -1;
  }

  static v1::Reason ReasonOf(const absl::Status& status) { return ErrorDetailOf(status).reason(); }
  static v1::Reason ReasonOf(const AnswerPtr& answer) { return ReasonOf(answer->result.status); }
  static absl::StatusCode CodeOf(const AnswerPtr& answer) { return answer->result.status.code(); }

  const HeadShape shape_;
  FakeClock clock_;
  ServerConfig config_;
  PuppetBackend backend_;
  Metrics metrics_;
  Ticket last_ticket_ = 0;

 private:
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace attnd
