#include "client/time_source.h"

namespace attnd::client {
namespace {

class SteadyTime final : public TimeSource {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }

  void WaitUntil(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                 TimePoint until) override {
    if (until == kNever) {
      changed.wait(lock);
    } else {
      changed.wait_until(lock, until);
    }
  }
};

}  // namespace

std::shared_ptr<TimeSource> SystemTime() {
  static const std::shared_ptr<TimeSource> time = std::make_shared<SteadyTime>();
  return time;
}

}  // namespace attnd::client
