// Runs batches on one GPU. Two threads: the packing thread copies a batch's tensors into pinned
// memory and hands copies and kernels to the driver; the completing thread waits, fills the replies
// and calls `done`. Copy-in, kernels and copy-out have a stream each, so those of consecutive
// batches overlap; kernels run in order of Submit.
//
// The first device fault ends it: CUDA's context is lost with it, so this batch and all later ones
// fail at once.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/attention_backend.h"
#include "server/cuda_flight.h"
#include "server/cuda_memory.h"
#include "server/metrics.h"
#include "server/mutex.h"

namespace attnd {

class CudaBackend final : public AttentionBackend {
 public:
  struct Options {
    int device_index = 0;
    BackendLimits limits;          // complete but for `pool` and `host_pool`
    std::int64_t arena_bytes = 0;  // device memory of one batch in flight
  };
  // Takes the memory: pool, arenas, staging, page-locked host memory for idle sequences. `metrics`
  // outlives the backend.
  static absl::StatusOr<std::unique_ptr<CudaBackend>> Create(const Options& options,
                                                             Metrics& metrics);
  ~CudaBackend() override;

  const BackendLimits& limits() const override { return lane_.limits; }
  void Submit(std::unique_ptr<Batch> batch, BatchDone done) override;
  // Loads the code of every row that a batch can select, and runs it; before the first Submit.
  absl::Status SelfTest() override;
  double MeasureReadBandwidth() override;
  void Stop() override;

 private:
  struct Job {
    std::unique_ptr<Batch> batch;
    BatchDone done;
    std::unique_ptr<CudaFlight> flight;  // from packing to completion
    BatchResult result;
  };

  CudaBackend(const Options& options, Metrics& metrics);
  absl::Status TakeMemory(std::int64_t arena_bytes);
  void Pack();
  void Complete();
  absl::Status LaunchBatch(Job& job);
  absl::Status LaunchSpans(Job& job, const std::vector<ItemSpan>& spans,
                           std::span<const PageCopy> copies, bool last);
  bool TakeJob(Job& job);

  const int device_index_;
  Metrics& metrics_;
  CudaLane lane_;
  DeviceMemory pool_;
  PinnedMemory host_pool_;  // null without --host_cache_bytes

  Mutex mutex_;
  ConditionVariable changed_;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  std::deque<Job> launched_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<CudaFlight>> idle_ ABSL_GUARDED_BY(mutex_);
  int num_flights_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status fault_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool packed_ ABSL_GUARDED_BY(mutex_) = false;  // the packing thread has ended
  std::thread packing_, completing_;
};

}  // namespace attnd
