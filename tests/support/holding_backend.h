// A backend that lets a test hold, count and fail the batches of the one inside it.
#pragma once

#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "server/attention_backend.h"
#include "server/mutex.h"

namespace attnd::testing {

// Shared between the test and the decorator, which the server owns.
class BackendControl {
 public:
  // Batches that come from now on wait; Release lets them and all later ones through.
  void Hold();
  void Release();
  // The next batch is answered with this error instead of being run.
  void FailNext(absl::Status status);
  // The next batch is reported as done twice, the second time without the batch.
  void ReportNextTwice();
  // Batches that reached the backend.
  std::int64_t batches() const;
  // Blocks until that many have.
  void AwaitBatches(std::int64_t count) const;

  // Wraps `inner`; `this` outlives the result.
  std::unique_ptr<AttentionBackend> Wrap(std::unique_ptr<AttentionBackend> inner);

 private:
  class Decorator;
  struct Waiting {
    std::unique_ptr<Batch> batch;
    BatchDone done;
  };
  void Submit(AttentionBackend& inner, std::unique_ptr<Batch> batch, BatchDone done);

  void JoinFailures();

  mutable Mutex mutex_;
  mutable ConditionVariable arrived_;
  AttentionBackend* inner_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool holding_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status next_error_ ABSL_GUARDED_BY(mutex_);
  bool report_twice_ ABSL_GUARDED_BY(mutex_) = false;
  std::int64_t batches_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> failing_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attnd::testing
