// A thread that runs what it is given, one piece of work after the other. It starts with the first.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"

namespace attnd::loadtest {

class SlotThread {
 public:
  using Work = absl::AnyInvocable<void()>;

  SlotThread() = default;
  // Waits for the work under way. Not from within it.
  ~SlotThread() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
  }
  SlotThread(const SlotThread&) = delete;
  SlotThread& operator=(const SlotThread&) = delete;

  // Returns at once. Nothing is under way, or this is called from within it, as its last act.
  void Run(Work work) {
    {
      const std::lock_guard lock(mutex_);
      next_ = std::move(work);
      if (!thread_.joinable()) thread_ = std::thread([this] { Loop(); });
    }
    changed_.notify_one();
  }

 private:
  void Loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ending_ || next_ != nullptr; });
      if (next_ == nullptr) return;
      Work work = std::exchange(next_, nullptr);
      lock.unlock();
      work();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Work next_;            // guarded by mutex_, as the rest
  bool ending_ = false;  // runs what is left, then ends
  std::thread thread_;
};

}  // namespace attnd::loadtest
