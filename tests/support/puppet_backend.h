// A backend that a test steps by hand: it keeps what is submitted until the test completes it.
// Batches are completed in order, on the calling thread. Thread-safe. On request it leaves batches
// that find nothing submitted to the thread that brings them.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "server/attention_backend.h"

namespace attnd {

class PuppetBackend final : public AttentionBackend {
 public:
  explicit PuppetBackend(std::int64_t pool_bytes = std::int64_t{8} << 20)
      : pool_(static_cast<std::size_t>(pool_bytes)) {
    limits_.device.num_threads = 1;
    limits_.device.cpu_target = kernels::CpuTarget::kScalar;
    limits_.device_name = "puppet";
    limits_.workspace_bytes = std::int64_t{64} << 20;
    limits_.pool = pool_.data();
    limits_.pool_bytes = pool_bytes;
  }

  const BackendLimits& limits() const override { return limits_; }
  BackendLimits& mutable_limits() { return limits_; }
  absl::Status SelfTest() override { return absl::OkStatus(); }
  void Stop() override {}

  void Submit(std::unique_ptr<Batch> batch, BatchDone done) override {
    const std::lock_guard lock(mutex_);
    ++submitted_;
    jobs_.push_back({std::move(batch), std::move(done)});
  }

  absl::AnyInvocable<void()> SubmitHere(std::unique_ptr<Batch>& batch, BatchDone& done) override {
    const std::lock_guard lock(mutex_);
    if (!runs_here_ || !jobs_.empty()) return nullptr;
    ++ran_here_;
    return [job = Job{std::move(batch), std::move(done)}]() mutable {
      job.done(std::move(job.batch), BatchResult());
    };
  }
  void RunHere(bool runs_here) {
    const std::lock_guard lock(mutex_);
    runs_here_ = runs_here;
  }
  // Batches that submitting threads took.
  std::size_t ran_here() const {
    const std::lock_guard lock(mutex_);
    return ran_here_;
  }

  std::size_t waiting() const {
    const std::lock_guard lock(mutex_);
    return jobs_.size();
  }
  // Batches ever submitted.
  std::size_t submitted() const {
    const std::lock_guard lock(mutex_);
    return submitted_;
  }
  // The oldest batch that is not completed; one must be there.
  const Batch& front() const { return at(0); }
  const Batch& at(std::size_t index) const {
    const std::lock_guard lock(mutex_);
    return *jobs_.at(index).batch;
  }

  // Ends the oldest batch. False: there is none.
  bool Complete(absl::Status status = absl::OkStatus(), Clock::Duration kernel_time = {}) {
    Job job;
    {
      const std::lock_guard lock(mutex_);
      if (jobs_.empty()) return false;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    BatchResult result;
    result.status = std::move(status);
    result.kernel_time = kernel_time;
    job.done(std::move(job.batch), std::move(result));
    return true;
  }
  // Until nothing is submitted any more.
  void CompleteAll() {
    while (Complete()) {
    }
  }

 private:
  struct Job {
    std::unique_ptr<Batch> batch;
    BatchDone done;
  };
  std::vector<std::byte> pool_;
  BackendLimits limits_;
  mutable std::mutex mutex_;
  std::deque<Job> jobs_;
  std::size_t submitted_ = 0, ran_here_ = 0;
  bool runs_here_ = false;
};

}  // namespace attnd
