// Runs batches with the CPU kernels: one backend thread takes batches in order, but a small one
// that finds it idle runs on the thread that submits it; kernels spread over a CpuExecutor. Tensors
// are read in place where they lie in one aligned piece, else copied once (cpu_staging.h); new keys
// and values go from there straight into pages; outputs are written into the reply's memory.
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
#include "server/clock.h"
#include "server/cpu_staging.h"
#include "server/metrics.h"
#include "server/mutex.h"
#include "server/server_config.h"

namespace attnd {

class CpuBackend final : public AttentionBackend {
 public:
  // Uses threads, cache_bytes, workspace_bytes and cpu_target of `config`, none of them 0 (see
  // ResolveDefaults). Maps the page pool; pages become resident when first written. References
  // outlive the backend.
  static absl::StatusOr<std::unique_ptr<CpuBackend>> Create(const ServerConfig& config,
                                                            const Clock& clock, Metrics& metrics);
  ~CpuBackend() override;

  const BackendLimits& limits() const override { return limits_; }
  void Submit(std::unique_ptr<Batch> batch, BatchDone done) override;
  absl::AnyInvocable<void()> SubmitHere(std::unique_ptr<Batch>& batch, BatchDone& done) override;
  // On the calling thread; only before the first Submit.
  absl::Status SelfTest() override;
  void Stop() override;

  double MeasureReadBandwidth() override;

 private:
  struct Job {
    std::unique_ptr<Batch> batch;
    BatchDone done;
  };
  class Pool;  // unmaps itself

  CpuBackend(const BackendLimits& limits, std::unique_ptr<Pool> pool,
             std::unique_ptr<Pool> host_pool, const Clock& clock, Metrics& metrics);
  void Run();
  void RunHere(Job job);
  BatchResult RunBatch(Batch& batch);
  void Stage(Batch& batch);
  absl::Status CopyPages(const Batch& batch);
  absl::Status Append(Batch& batch);
  absl::Status Attend(Batch& batch, const kernels::AttentionSequence* sequences, int count);
  absl::Status LaunchAttention(Batch& batch, const kernels::LaunchPlan& plan,
                               const kernels::AttentionParams& params);
  absl::Status TestRow(const kernels::KernelRow& row, kernels::DataType type);
  std::byte* Workspace(std::int64_t bytes);

  BackendLimits limits_;
  std::unique_ptr<Pool> pool_, host_pool_;  // the second one may be null
  const Clock& clock_;
  Metrics& metrics_;
  kernels::CpuExecutor executor_;
  const char* append_name_;  // of the append row, for metrics

  // Of the thread that runs a batch: while busy_ is set, nobody else may.
  CpuStaging staging_;
  std::vector<kernels::AttentionSequence> sequences_;
  std::vector<kernels::AppendSequence> appends_;
  std::unique_ptr<std::byte[], void (*)(std::byte*)> workspace_;
  std::int64_t workspace_bytes_ = 0;

  Mutex mutex_;
  ConditionVariable work_arrived_;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;  // a batch runs, here or on a submitting thread
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace attnd
