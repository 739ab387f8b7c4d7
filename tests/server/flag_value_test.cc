#include "server/flag_value.h"

#include "gtest/gtest.h"

namespace attnd {
namespace {

using std::chrono::milliseconds;

TEST(FlagValueTest, ReadsDurationsWithTheirUnits) {
  EXPECT_EQ(*ParseDuration("250ms"), milliseconds(250));
  EXPECT_EQ(*ParseDuration("5s"), milliseconds(5'000));
  EXPECT_EQ(*ParseDuration("10m"), milliseconds(600'000));
  EXPECT_EQ(*ParseDuration("1h"), milliseconds(3'600'000));
  EXPECT_EQ(*ParseDuration("2d"), milliseconds(172'800'000));
  EXPECT_EQ(*ParseDuration("1.5s"), milliseconds(1'500));
  EXPECT_EQ(*ParseDuration("0.1s"), milliseconds(100));
  EXPECT_EQ(*ParseDuration("0"), milliseconds(0));
  EXPECT_EQ(*ParseDuration("0s"), milliseconds(0));
}

TEST(FlagValueTest, RefusesDurationsThatCouldMeanAnything) {
  for (const char* text : {"", "5", "s", "-5s", "5 s", "5sec", "0.1ms", "1..5s", "1e3s", "nan",
                           "inf", "99999999999999999999d", ".s", "5S"}) {
    EXPECT_FALSE(ParseDuration(text).ok()) << text;
  }
}

TEST(FlagValueTest, ReadsSizes) {
  EXPECT_EQ(*ParseByteSize("0"), 0);
  EXPECT_EQ(*ParseByteSize("123"), 123);
  EXPECT_EQ(*ParseByteSize("123B"), 123);
  EXPECT_EQ(*ParseByteSize("16KiB"), 16 * 1024);
  EXPECT_EQ(*ParseByteSize("512MiB"), std::int64_t{512} << 20);
  EXPECT_EQ(*ParseByteSize("4GiB"), std::int64_t{4} << 30);
  EXPECT_EQ(*ParseByteSize("1.5GiB"), std::int64_t{3} << 29);
  EXPECT_EQ(*ParseByteSize("2TiB"), std::int64_t{2} << 40);
  EXPECT_EQ(*ParseByteSize("4GB"), 4'000'000'000);
}

TEST(FlagValueTest, RefusesSizesThatCouldMeanAnything) {
  for (const char* text :
       {"", "-1", "4G", "4 GiB", "4gib", "GiB", "0.3B", "1.0000001KiB", "99999999TiB", "0x10"}) {
    EXPECT_FALSE(ParseByteSize(text).ok()) << text;
  }
}

TEST(FlagValueTest, WritesWhatItReads) {
  for (const std::int64_t value :
       {0, 1, 250, 999, 1000, 1500, 60'000, 90'000, 3'600'000, 86'400'000, 86'400'001}) {
    EXPECT_EQ(*ParseDuration(FormatDuration(milliseconds(value))), milliseconds(value));
    EXPECT_EQ(*ParseByteSize(FormatByteSize(value)), value);
  }
  EXPECT_EQ(FormatDuration(milliseconds(90'000)), "90s");
  EXPECT_EQ(FormatDuration(milliseconds(86'400'000)), "1d");
  EXPECT_EQ(FormatByteSize(std::int64_t{3} << 29), "1536MiB");
  EXPECT_EQ(FormatByteSize(1025), "1025");
}

TEST(FlagValueTest, ReadsSwitchesAndCounts) {
  for (const char* text : {"true", "on", "yes", "1"}) EXPECT_TRUE(*ParseBool(text)) << text;
  for (const char* text : {"false", "off", "no", "0"}) EXPECT_FALSE(*ParseBool(text)) << text;
  EXPECT_FALSE(ParseBool("maybe").ok());
  EXPECT_FALSE(ParseBool("").ok());
  EXPECT_EQ(*ParseCount("-7"), -7);
  for (const char* text : {"", "1.5", "1e3", "7 ", "0x7", "99999999999999999999"}) {
    EXPECT_FALSE(ParseCount(text).ok()) << text;
  }
}

}  // namespace
}  // namespace attnd
