// Waits for what another thread or process does.
#pragma once

#include <chrono>
#include <thread>

namespace attnd::testing {

// False: the condition has not come true within the limit. Asks for it every millisecond.
template <typename Condition>
bool Await(const Condition& condition,
           std::chrono::steady_clock::duration limit = std::chrono::seconds(20)) {
  const auto give_up = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > give_up) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace attnd::testing
