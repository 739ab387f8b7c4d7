#include "server/request_log.h"

#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace attnd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kTraceparent[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
constexpr int kOk = 0, kCancelled = 1, kInvalidArgument = 3, kResourceExhausted = 8, kInternal = 13;

class SteppedClock final : public Clock {
 public:
  TimePoint Now() const override { return now; }
  TimePoint now{seconds(100)};
};

class RequestLogTest : public ::testing::Test {
 protected:
  RequestLogTest() { LogToStream(stream_, LogLevel::kTrace, LogFormat::kText); }
  ~RequestLogTest() override { EXPECT_TRUE(SetUpLogging("info", "text").ok()); }

  std::string LineFor(int code, Clock::Duration duration, std::string_view traceparent = "") {
    stream_.str("");
    log_.OnAnswer({Method::kDecode, code, duration, code == kOk ? "" : "some text", traceparent});
    return stream_.str();
  }

  SteppedClock clock_;
  std::ostringstream stream_;
  RequestLog log_{clock_, seconds(1)};
};

TEST_F(RequestLogTest, IsSilentAboutGoodFastRequests) {
  EXPECT_EQ(LineFor(kOk, milliseconds(999)), "");
  EXPECT_EQ(LineFor(kOk, seconds(1)), "");
}

TEST_F(RequestLogTest, LogsSlowRequestsWithTheirTraceparent) {
  const std::string line = LineFor(kOk, milliseconds(1500), kTraceparent);
  EXPECT_THAT(line, HasSubstr("warning slow request method=Decode code=OK duration_seconds=1.5"));
  EXPECT_THAT(line, HasSubstr(std::string("traceparent=") + kTraceparent));
}

TEST_F(RequestLogTest, LogsFailuresAtTheLevelOfWhoseFaultItIs) {
  EXPECT_THAT(LineFor(kInvalidArgument, milliseconds(1)),
              HasSubstr("info request failed method=Decode code=INVALID_ARGUMENT"));
  EXPECT_THAT(LineFor(kResourceExhausted, milliseconds(1)), HasSubstr("warning request failed"));
  EXPECT_THAT(LineFor(kInternal, milliseconds(1)), HasSubstr("error request failed"));
  EXPECT_THAT(LineFor(kCancelled, milliseconds(1)), HasSubstr("debug request failed"));
  EXPECT_THAT(LineFor(99, milliseconds(1)), HasSubstr("code=UNKNOWN"));
}

TEST_F(RequestLogTest, LeavesOutWhatIsNoTraceparent) {
  const std::string line = LineFor(kInternal, milliseconds(1), "00-evil\nline");
  EXPECT_THAT(line, HasSubstr("traceparent=\"\""));
  EXPECT_THAT(line, Not(HasSubstr("evil")));
}

TEST_F(RequestLogTest, LogsOneFailureOfAKindASecondAndCountsTheRest) {
  EXPECT_THAT(LineFor(kInternal, milliseconds(1)), HasSubstr("similar_not_logged=0"));
  for (int i = 0; i < 50; ++i) EXPECT_EQ(LineFor(kInternal, milliseconds(1)), "");
  EXPECT_THAT(LineFor(kInvalidArgument, milliseconds(1)), HasSubstr("INVALID_ARGUMENT"));
  clock_.now += seconds(1);
  EXPECT_THAT(LineFor(kInternal, milliseconds(1)), HasSubstr("similar_not_logged=50"));
}

TEST_F(RequestLogTest, NothingIsSlowWhenTheLimitIsOff) {
  RequestLog log(clock_, seconds(0));
  log.OnAnswer({Method::kAttend, kOk, seconds(1000), "", ""});
  EXPECT_EQ(stream_.str(), "");
}

TEST(TraceparentTest, AcceptsTheStandardFormOnly) {
  EXPECT_TRUE(IsValidTraceparent(kTraceparent));
  for (const char* text : {"", "00", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0",
                           "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                           "00-00000000000000000000000000000000-b7ad6b7169203331-01",
                           "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
                           "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                           "00-0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331-01",
                           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n"}) {
    EXPECT_FALSE(IsValidTraceparent(text)) << text;
  }
}

}  // namespace
}  // namespace attnd
