// A backend that misbehaves on demand, around a real one: delays, blocks, fails at the n-th
// execution, counts executions. For tests that run a whole server. Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "server/attention_backend.h"

namespace attnd {

class FaultBackend final : public AttentionBackend {
 public:
  explicit FaultBackend(AttentionBackend& backend) : backend_(backend) {}

  // Added to every execution from now on, after it ran and before it is answered.
  void SetDelay(Clock::Duration delay) {
    const std::lock_guard lock(mutex_);
    delay_ = delay;
  }
  // No execution is answered until Unblock.
  void Block() {
    const std::lock_guard lock(mutex_);
    blocked_ = true;
  }
  void Unblock() {
    {
      const std::lock_guard lock(mutex_);
      blocked_ = false;
    }
    changed_.notify_all();
  }
  // The `execution`-th one (from 1) and all after it report a device error.
  void FailFrom(std::int64_t execution) {
    const std::lock_guard lock(mutex_);
    fail_from_ = execution;
  }
  void FailSelfTest() {
    const std::lock_guard lock(mutex_);
    fail_self_test_ = true;
  }
  // Executions started.
  std::int64_t executions() const {
    const std::lock_guard lock(mutex_);
    return executions_;
  }

  const BackendLimits& limits() const override { return backend_.limits(); }
  absl::Status SelfTest() override {
    {
      const std::lock_guard lock(mutex_);
      if (fail_self_test_) return absl::InternalError("the self-test was told to fail");
    }
    return backend_.SelfTest();
  }
  void Stop() override {
    Unblock();
    backend_.Stop();
  }

  void Submit(std::unique_ptr<Batch> batch, BatchDone done) override {
    bool fails = false;
    {
      const std::lock_guard lock(mutex_);
      ++executions_;
      fails = fail_from_ > 0 && executions_ >= fail_from_;
    }
    backend_.Submit(std::move(batch),
                    [this, fails, done = std::move(done)](std::unique_ptr<Batch> finished,
                                                          BatchResult result) mutable {
                      WaitAsTold();
                      if (fails) result.status = absl::InternalError("the device was told to fail");
                      done(std::move(finished), std::move(result));
                    });
  }

 private:
  // On the backend's thread, so that later batches wait too, as behind a slow launch.
  void WaitAsTold() {
    std::unique_lock lock(mutex_);
    const Clock::Duration delay = delay_;
    if (delay > Clock::Duration{0}) {
      lock.unlock();
      std::this_thread::sleep_for(delay);
      lock.lock();
    }
    changed_.wait(lock, [this] { return !blocked_; });
  }

  AttentionBackend& backend_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Clock::Duration delay_{0};
  bool blocked_ = false, fail_self_test_ = false;
  std::int64_t fail_from_ = 0, executions_ = 0;
};

}  // namespace attnd
