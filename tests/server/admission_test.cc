// The rules of Decode steps as a pure function.
#include "server/admission.h"

#include <gtest/gtest.h>

#include <limits>

#include "server/error_status.h"

namespace attnd {
namespace {

v1::Reason ReasonOf(const StepVerdict& verdict) { return ErrorDetailOf(verdict.status).reason(); }

LayerRules Rules() {
  LayerRules rules;
  rules.max_tokens = 100;
  rules.page_tokens = 16;
  return rules;
}

TEST(AdmissionTest, EveryPositionAndEpochHasOneVerdict) {
  // On a layer of 10 tokens in epoch 5, a step of 3 tokens.
  const LayerProgress layer{10, 5, 0};
  for (std::int64_t position = 0; position < 20; ++position) {
    for (std::uint64_t epoch = 4; epoch <= 6; ++epoch) {
      const StepVerdict verdict = JudgeStep(Rules(), layer, {position, 3, epoch, {}, true, true});
      SCOPED_TRACE(testing::Message() << "position " << position << " epoch " << epoch);
      if (epoch == 4) {
        EXPECT_EQ(ReasonOf(verdict), v1::REASON_STALE_EPOCH);
      } else if (position > 10 || (epoch == 5 && position != 10 && position + 3 > 10)) {
        EXPECT_EQ(ReasonOf(verdict), v1::REASON_POSITION);
        EXPECT_EQ(ErrorDetailOf(verdict.status).cached_tokens(), 10);
      } else {
        EXPECT_TRUE(verdict.status.ok());
        EXPECT_EQ(verdict.kind,
                  epoch == 6 || position == 10 ? StepKind::kAppend : StepKind::kRepeat);
      }
    }
  }
}

TEST(AdmissionTest, HugePositionsDoNotOverflow) {
  const StepVerdict verdict =
      JudgeStep(Rules(), {}, {std::numeric_limits<std::int64_t>::max(), 3, 0, {}, true, true});
  EXPECT_EQ(ReasonOf(verdict), v1::REASON_LIMIT);
  EXPECT_EQ(verdict.status.code(), absl::StatusCode::kOutOfRange);
}

TEST(AdmissionTest, LastTokenFits) {
  EXPECT_TRUE(JudgeStep(Rules(), {97, 0, 0}, {97, 3, 0, {}, true, true}).status.ok());
  EXPECT_EQ(ReasonOf(JudgeStep(Rules(), {97, 0, 0}, {97, 4, 0, {}, true, true})), v1::REASON_LIMIT);
}

TEST(AdmissionTest, AppendMovesLengthEpochAndWindow) {
  LayerRules rules = Rules();
  rules.window_left = 20;
  rules.window_slack_tokens = 10;
  const LayerProgress after =
      AfterStep(rules, {60, 1, 16}, {60, 5, 2, {}, true, true}, StepKind::kAppend);
  EXPECT_EQ(after.length, 65);
  EXPECT_EQ(after.epoch, 2U);
  EXPECT_EQ(after.freed_tokens, 32);  // 65 - 30 = 35, whole pages
  const LayerProgress same =
      AfterStep(rules, {60, 1, 16}, {50, 5, 1, {}, true, true}, StepKind::kRepeat);
  EXPECT_EQ(same.length, 60);
}

TEST(AdmissionTest, RollbackKeepsWhatTheWindowHasFreed) {
  LayerRules rules = Rules();
  rules.window_left = 20;
  const LayerProgress after =
      AfterStep(rules, {90, 0, 64}, {84, 1, 1, {}, true, true}, StepKind::kAppend);
  EXPECT_EQ(after.freed_tokens, 64);
}

TEST(AdmissionTest, WindowPassedExactlyWhereFreedKeysAreNeeded) {
  LayerRules rules = Rules();
  rules.window_left = 20;
  const LayerProgress layer{80, 0, 48};
  // A query at p sees keys from p - 20 on; those below 48 are gone.
  EXPECT_TRUE(JudgeStep(rules, layer, {68, 1, 1, {}, true, true}).status.ok());
  EXPECT_EQ(ReasonOf(JudgeStep(rules, layer, {67, 1, 1, {}, true, true})),
            v1::REASON_WINDOW_PASSED);
  EXPECT_TRUE(JudgeStep(rules, layer, {68, 1, 0, {}, true, true}).status.ok());
  EXPECT_EQ(ReasonOf(JudgeStep(rules, layer, {67, 1, 0, {}, true, true})),
            v1::REASON_WINDOW_PASSED);
  EXPECT_TRUE(CanContinueFrom(rules, layer, 68));
  EXPECT_FALSE(CanContinueFrom(rules, layer, 67));
  EXPECT_TRUE(CanContinueFrom(rules, layer, 1000));  // cuts nothing
}

TEST(AdmissionTest, RepeatOfAnAppendOnlyStepNeedsNoKeys) {
  LayerRules rules = Rules();
  rules.window_left = 20;
  EXPECT_TRUE(JudgeStep(rules, {80, 0, 48}, {10, 1, 0, {}, true, false}).status.ok());
}

TEST(AdmissionTest, AttendOnlyNeedsThePrefixItsWindowShows) {
  LayerRules rules = Rules();
  const LayerProgress layer{80, 3, 48};
  EXPECT_TRUE(JudgeStep(rules, {80, 3, 0}, {80, 4, 3, {}, false, true}).status.ok());
  EXPECT_EQ(ReasonOf(JudgeStep(rules, {80, 3, 0}, {81, 4, 3, {}, false, true})),
            v1::REASON_POSITION);
  EXPECT_EQ(ReasonOf(JudgeStep(rules, {80, 3, 0}, {80, 4, 2, {}, false, true})),
            v1::REASON_STALE_EPOCH);
  rules.window_left = 20;
  rules.needs_query_position = true;
  EXPECT_EQ(ReasonOf(JudgeStep(rules, layer, {80, 4, 3, {}, false, true})),
            v1::REASON_INVALID_FIELD);
  EXPECT_TRUE(JudgeStep(rules, layer, {80, 4, 3, 68, false, true}).status.ok());
  EXPECT_EQ(ReasonOf(JudgeStep(rules, layer, {80, 4, 3, 67, false, true})),
            v1::REASON_WINDOW_PASSED);
}

TEST(AdmissionTest, StepIndexIsPutInOnce) {
  const absl::Status at = AtStep(InvalidField("layer", "9", "0 to 3"), 4);
  EXPECT_EQ(ErrorDetailOf(at).step_index(), 4);
  EXPECT_EQ(ErrorDetailOf(at).field(), "steps[4].layer");
  EXPECT_EQ(AtStep(at, 7), at);
}

TEST(AdmissionTest, RetryDelayIsCarried) {
  const absl::Status status = WithRetryDelay(
      ErrorStatus(absl::StatusCode::kResourceExhausted, v1::REASON_QUEUE_FULL, "", "full"),
      std::chrono::milliseconds(1500));
  const v1::ErrorDetail detail = ErrorDetailOf(status);
  EXPECT_EQ(detail.retry_delay().seconds(), 1);
  EXPECT_EQ(detail.retry_delay().nanos(), 500'000'000);
  EXPECT_EQ(detail.reason(), v1::REASON_QUEUE_FULL);
}

}  // namespace
}  // namespace attnd
