// One launch in flight on a GPU: its piece of device memory, its events, its way back.
//
// The packing thread calls Launch, which returns once everything has been handed to the driver;
// the completing thread, later, Finish. Between the two the flight belongs to the device. A flight
// is used again when Finish has returned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda_kernels.h"
#include "server/attention_backend.h"
#include "server/cuda_layout.h"
#include "server/cuda_memory.h"
#include "server/cuda_staging.h"
#include "server/metrics.h"

namespace attnd {

// What all flights of a device share; outlives them.
struct CudaLane {
  BackendLimits limits;
  const char* append_name = "";  // of the append row, for metrics
  StreamOwner upload, compute, readback;
  CudaUpload uploader;  // the packing thread's
};

class CudaFlight {
 public:
  static absl::StatusOr<std::unique_ptr<CudaFlight>> Create(CudaLane& lane, Metrics& metrics,
                                                            std::int64_t arena_bytes);

  // Copies pages, appends, attends: `spans` of `batch`, after everything launched before.
  // RESOURCE_EXHAUSTED: the arena is too small, nothing was launched; another error is a fault of
  // the device.
  absl::Status Launch(Batch& batch, std::span<const ItemSpan> spans,
                      std::span<const PageCopy> copies);
  // Waits, computes again what came out non-finite, fills the outputs, records metrics. The time
  // that kernels took is added to `kernel_time`.
  absl::Status Finish(Clock::Duration& kernel_time);

 private:
  // Device times, in the order of the compute stream; uploads before them on their own.
  enum Mark : int { kUploadBegin, kUploaded, kBegin, kAppended, kRotated, kEnd, kNumMarks };
  // Where the launch status words of the append and the attention are read back to.
  struct Reports {
    kernels::CudaLaunchStatus append, attention;
  };

  CudaFlight(CudaLane& lane, Metrics& metrics, std::int64_t arena_bytes)
      : lane_(lane), metrics_(metrics), arena_bytes_(arena_bytes) {}

  absl::Status Prepare(Batch& batch, std::span<const ItemSpan> spans);
  absl::Status PlanAttention(Batch& batch);
  absl::Status Upload();
  // Those that move between pool and host memory, or the others.
  absl::Status CopyPages(const Batch& batch, std::span<const PageCopy> copies, bool moving);
  absl::Status Append(Batch& batch);
  absl::Status Rotate(const Batch& batch);
  absl::Status Attend(Batch& batch);
  absl::Status StartReadback();
  absl::Status RerunNonfinite();
  absl::Status Record(Mark mark, cudaStream_t stream);
  double SecondsOf(Mark begin, Mark end) const;
  void RecordMetrics(double append_seconds, double attention_seconds);
  std::byte* At(std::int64_t offset) const { return arena_.get() + offset; }

  CudaLane& lane_;
  Metrics& metrics_;
  const std::int64_t arena_bytes_;
  DeviceMemory arena_;
  CudaReadback readback_;
  EventOwner marks_[kNumMarks];
  EventOwner reported_;  // behind the copies of `reports_`
  PinnedMemory reports_memory_;
  Reports* reports_ = nullptr;  // in reports_memory_

  CudaLayout layout_;
  kernels::AppendParams append_;
  kernels::AttentionParams attention_;
  kernels::CudaPlan plan_;
  std::vector<std::byte> plan_upload_;
  std::int64_t append_array_ = 0, append_status_ = 0, rotation_array_ = 0,
               workspace_ = 0;  // arena offsets
};

}  // namespace attnd
