#include "server/service_state.h"

#include <gtest/gtest.h>

#include <chrono>

namespace attnd {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// What gRPC's core makes of a timeout: 1,501 ms are sent as 151 tens of milliseconds.
TEST(ServiceStateTest, KnowsHowFarATimeoutIsRoundedUp) {
  EXPECT_EQ(TimeoutRounding(microseconds(10)), milliseconds(1));
  EXPECT_EQ(TimeoutRounding(milliseconds(200)), milliseconds(1));
  EXPECT_EQ(TimeoutRounding(milliseconds(999)), milliseconds(1));
  EXPECT_EQ(TimeoutRounding(milliseconds(1'510)), milliseconds(10));
  EXPECT_EQ(TimeoutRounding(seconds(30)), milliseconds(100));
  EXPECT_EQ(TimeoutRounding(seconds(600)), seconds(1));
  EXPECT_EQ(TimeoutRounding(hours(2)), seconds(10));
}

TEST(ServiceStateTest, ACancellationIsAMissedDeadlineOnlyWhereTheClientsClockMayHaveReachedIt) {
  const Clock::TimePoint received{hours(1)};
  const auto cancelled = [received](Clock::Duration timeout, Clock::Duration before_deadline) {
    CallTiming timing;
    timing.received = received;
    timing.deadline = received + timeout;
    timing.deadline_rounding = TimeoutRounding(timeout);
    return CancelledByDeadline(timing, timing.deadline - before_deadline);
  };
  EXPECT_TRUE(cancelled(milliseconds(200), milliseconds(0)));
  EXPECT_TRUE(cancelled(milliseconds(200), -seconds(1))) << "long after";
  EXPECT_TRUE(cancelled(milliseconds(200), milliseconds(3)));
  EXPECT_FALSE(cancelled(milliseconds(200), milliseconds(4)));
  EXPECT_FALSE(cancelled(milliseconds(200), milliseconds(19)));
  EXPECT_TRUE(cancelled(milliseconds(1'510), milliseconds(12)));
  EXPECT_FALSE(cancelled(milliseconds(1'510), milliseconds(13)));
  EXPECT_TRUE(cancelled(seconds(30), milliseconds(100)));
  EXPECT_FALSE(cancelled(seconds(30), milliseconds(200)));
  EXPECT_FALSE(CancelledByDeadline({}, received)) << "no deadline";
}

}  // namespace
}  // namespace attnd
