// What runs batches: one interface for the CPU and for GPUs.
//
// Submit returns at once; `done` runs once on a backend thread. At least two batches may be in
// flight, so that the next one is packed and copied while the current one runs; batches run in
// order of Submit. All memory that a batch refers to stays alive until `done` has been called.
// An idle backend may leave a small batch to the thread that brings it (SubmitHere).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "kernels/attention_kernels.h"
#include "server/batch.h"
#include "server/clock.h"

namespace attnd {

struct BackendLimits {
  kernels::DeviceLimits device;
  std::string device_name;  // "cpu", "cuda:0": the `device` label of metrics
  std::string description;  // model name
  std::string uuid;         // GPUs only
  std::string kernel_arch;  // "avx512_bf16", "sm80"
  std::uint64_t memory_bytes = 0;
  double datasheet_bytes_per_second = 0;  // of the memory; 0: not known
  std::int64_t workspace_bytes = 0;       // most that one launch may ask for
  int max_batches_in_flight = 2;
  std::byte* pool = nullptr;  // page pool memory; read and written by the backend's kernels only
  std::int64_t pool_bytes = 0;
  // Where PageCopy::Kind::kToHost goes; the backend's own as well.
  std::byte* host_pool = nullptr;
  std::int64_t host_pool_bytes = 0;
};

struct BatchResult {
  absl::Status status;  // not OK: a device fault; every request of the batch fails with it
  Clock::Duration kernel_time{0};
};

using BatchDone = absl::AnyInvocable<void(std::unique_ptr<Batch>, BatchResult)>;

class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;
  virtual const BackendLimits& limits() const = 0;
  virtual void Submit(std::unique_ptr<Batch> batch, BatchDone done) = 0;
  // Takes a batch for the calling thread, if nothing else runs or waits and the batch is done about
  // as soon as another thread would have woken up for it. The caller then calls the result, once
  // and soon, without holding a lock: that runs the batch and `done`. Its place among the batches
  // is the time of this call. Null: not taken, `batch` and `done` are as they were.
  virtual absl::AnyInvocable<void()> SubmitHere(std::unique_ptr<Batch>& batch, BatchDone& done) {
    static_cast<void>(batch);
    static_cast<void>(done);
    return nullptr;
  }
  // A small real launch of every row the device can select; called before readiness.
  virtual absl::Status SelfTest() = 0;
  // A short measurement of the memory that holds the cache; only before the first Submit. 0: not
  // measured.
  virtual double MeasureReadBandwidth() { return 0; }
  // Finishes what was submitted; no Submit afterwards.
  virtual void Stop() = 0;
};

}  // namespace attnd
