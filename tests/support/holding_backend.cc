#include "tests/support/holding_backend.h"

namespace attnd::testing {

class BackendControl::Decorator final : public AttentionBackend {
 public:
  Decorator(std::unique_ptr<AttentionBackend> inner, BackendControl& control)
      : inner_(std::move(inner)), control_(control) {}

  const BackendLimits& limits() const override { return inner_->limits(); }
  void Submit(std::unique_ptr<Batch> batch, BatchDone done) override {
    control_.Submit(*inner_, std::move(batch), std::move(done));
  }
  absl::Status SelfTest() override { return inner_->SelfTest(); }
  void Stop() override {
    control_.JoinFailures();
    inner_->Stop();
  }

 private:
  std::unique_ptr<AttentionBackend> inner_;
  BackendControl& control_;
};

std::unique_ptr<AttentionBackend> BackendControl::Wrap(std::unique_ptr<AttentionBackend> inner) {
  MutexLock lock(mutex_);
  inner_ = inner.get();
  return std::make_unique<Decorator>(std::move(inner), *this);
}

void BackendControl::Submit(AttentionBackend& inner, std::unique_ptr<Batch> batch, BatchDone done) {
  absl::Status error;
  {
    MutexLock lock(mutex_);
    ++batches_;
    if (std::exchange(report_twice_, false)) {
      done = [done = std::move(done)](std::unique_ptr<Batch> ended,
                                      const BatchResult& result) mutable {
        done(std::move(ended), result);
        done(nullptr, result);
      };
    }
    arrived_.notify_all();
    error = std::exchange(next_error_, absl::OkStatus());
    if (holding_ && error.ok()) {
      waiting_.push_back({std::move(batch), std::move(done)});
      return;
    }
  }
  if (error.ok()) return inner.Submit(std::move(batch), std::move(done));
  // As a backend does: never inside Submit.
  MutexLock lock(mutex_);
  failing_.emplace_back(
      [error = std::move(error), batch = std::move(batch), done = std::move(done)]() mutable {
        BatchResult result;
        result.status = std::move(error);
        done(std::move(batch), std::move(result));
      });
}

void BackendControl::JoinFailures() {
  std::vector<std::thread> failing;
  {
    MutexLock lock(mutex_);
    failing.swap(failing_);
  }
  for (auto& thread : failing) thread.join();
}

void BackendControl::Hold() {
  MutexLock lock(mutex_);
  holding_ = true;
}

void BackendControl::Release() {
  std::vector<Waiting> waiting;
  AttentionBackend* inner = nullptr;
  {
    MutexLock lock(mutex_);
    holding_ = false;
    waiting = std::move(waiting_);
    waiting_.clear();
    inner = inner_;
  }
  for (auto& each : waiting) inner->Submit(std::move(each.batch), std::move(each.done));
}

void BackendControl::FailNext(absl::Status status) {
  MutexLock lock(mutex_);
  next_error_ = std::move(status);
}

void BackendControl::ReportNextTwice() {
  MutexLock lock(mutex_);
  report_twice_ = true;
}

std::int64_t BackendControl::batches() const {
  MutexLock lock(mutex_);
  return batches_;
}

void BackendControl::AwaitBatches(std::int64_t count) const {
  MutexLock lock(mutex_);
  while (batches_ < count) arrived_.wait(mutex_);
}

}  // namespace attnd::testing
