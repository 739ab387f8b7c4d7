#include "server/quiet_time.h"

#include <gtest/gtest.h>

namespace attnd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class QuietTimeTest : public testing::Test {
 protected:
  // Four looks a second, `busy` of processor time between two of them. How often it became quiet.
  int Run(Clock::Duration duration, Clock::Duration busy) {
    int begins = 0;
    for (const Clock::TimePoint end = now_ + duration; now_ < end;) {
      now_ += milliseconds(250);
      used_ += busy;
      if (quiet_.Begins(now_, used_)) ++begins;
    }
    return begins;
  }
  Clock::TimePoint now_{std::chrono::hours(1)};
  Clock::Duration used_{seconds(7)};
  QuietTime quiet_{now_, used_};
};

TEST_F(QuietTimeTest, BeginsOnceAfterWork) {
  EXPECT_EQ(Run(seconds(10), milliseconds(100)), 0);
  EXPECT_EQ(Run(seconds(1), milliseconds(0)), 0) << "a pause";
  EXPECT_EQ(Run(seconds(60), milliseconds(1)), 1);
  EXPECT_EQ(Run(seconds(3), milliseconds(100)), 0);
  EXPECT_EQ(Run(seconds(4), milliseconds(1)), 1);
}

TEST_F(QuietTimeTest, NeverBeginsWhereNothingWasDone) {
  EXPECT_EQ(Run(seconds(60), milliseconds(0)), 0);
}

TEST_F(QuietTimeTest, DoesNotBeginUnderSteadyWork) {
  EXPECT_EQ(Run(seconds(60), milliseconds(20)), 0) << "8 % of a core";
}

TEST_F(QuietTimeTest, WhatWasSkippedIsNoWork) {
  for (int round = 0; round < 10; ++round) {
    used_ += milliseconds(100);
    quiet_.Skip(used_);
    EXPECT_EQ(Run(seconds(3), milliseconds(0)), 0);
  }
}

}  // namespace
}  // namespace attnd
