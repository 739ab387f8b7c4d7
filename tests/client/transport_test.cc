#include "client/transport.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <stdexcept>

namespace attnd::client {
namespace {

using std::chrono::seconds;

constexpr char kNobodyListens[] = "127.0.0.1:1";

TransportOptions Unreachable() {
  TransportOptions options;
  options.target = kNobodyListens;
  return options;
}

grpc::ByteBuffer Request() {
  const grpc::Slice slice("request");
  return grpc::ByteBuffer(&slice, 1);
}

TEST(TransportTest, ADestroyedTransportHasAnsweredEveryCall) {
  std::promise<RawReply> reply;
  {
    Transport transport(Unreachable());
    transport.StartUnary(MethodPath("Attend"), Request(),
                         std::chrono::system_clock::now() + seconds(60),
                         [&](RawReply answer) { reply.set_value(std::move(answer)); });
  }
  auto answered = reply.get_future();
  ASSERT_EQ(answered.wait_for(seconds(0)), std::future_status::ready);
  EXPECT_FALSE(answered.get().status.ok());
}

void ThrowFromDone() {
  Transport transport(Unreachable());
  transport.StartUnary(MethodPath("Attend"), Request(),
                       std::chrono::system_clock::now() + seconds(60),
                       [](RawReply) { throw std::runtime_error("thrown by done"); });
}

TEST(TransportDeathTest, AnExceptionOutOfDoneEndsTheProcessInsteadOfHangingIt) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(ThrowFromDone(), "thrown by done");
}

}  // namespace
}  // namespace attnd::client
