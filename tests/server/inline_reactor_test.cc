#include "server/inline_reactor.h"

#include <gtest/gtest.h>

namespace attnd {
namespace {

struct AsksAsGrpcDoes {
  virtual ~AsksAsGrpcDoes() = default;
  bool Ask() { return InternalInlineable(); }

 private:
  virtual bool InternalInlineable() { return false; }
};

struct DoesNotAsk {
  int value = 5;
};

TEST(InlineReactorTest, AnswersAReactorThatAsks) {
  InlineReactor<AsksAsGrpcDoes> reactor;
  AsksAsGrpcDoes& base = reactor;
  EXPECT_TRUE(base.Ask());
}

TEST(InlineReactorTest, ExistsForAReactorThatDoesNotAsk) {
  EXPECT_EQ(InlineReactor<DoesNotAsk>().value, 5);
}

}  // namespace
}  // namespace attnd
