#include "server/cuda_backend.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace attnd {
namespace {

constexpr int kUploadChunks = 8;
constexpr std::int64_t kUploadChunkBytes = std::int64_t{2} << 20;
// Each of the ceilings' measurements; they delay readiness.
constexpr double kCeilingSeconds = 0.05;

const char* AppendRowName() {
  for (const kernels::KernelRow& row : kernels::KernelTable()) {
    if (row.operation == kernels::Operation::kAppend && row.device == kernels::DeviceKind::kCuda) {
      return row.name;
    }
  }
  return "any/append";
}

}  // namespace

CudaBackend::CudaBackend(const Options& options, Metrics& metrics)
    : device_index_(options.device_index), metrics_(metrics) {
  lane_.limits = options.limits;
  lane_.append_name = AppendRowName();
}

absl::StatusOr<std::unique_ptr<CudaBackend>> CudaBackend::Create(const Options& options,
                                                                 Metrics& metrics) {
  std::unique_ptr<CudaBackend> backend(new CudaBackend(options, metrics));
  if (absl::Status status = backend->TakeMemory(options.arena_bytes); !status.ok()) return status;
  backend->packing_ = std::thread([&server = *backend] { server.Pack(); });
  backend->completing_ = std::thread([&server = *backend] { server.Complete(); });
  return backend;
}

CudaBackend::~CudaBackend() { Stop(); }

absl::Status CudaBackend::TakeMemory(std::int64_t arena_bytes) {
  absl::Status status = CudaStatus(cudaSetDevice(device_index_), "choosing the device");
  if (!status.ok()) return status;
  auto pool = AllocateDevice(lane_.limits.pool_bytes);
  if (!pool.ok()) return pool.status();
  pool_ = *std::move(pool);
  lane_.limits.pool = pool_.get();
  if (lane_.limits.host_pool_bytes > 0) {
    auto host_pool = AllocatePinned(lane_.limits.host_pool_bytes);
    if (!host_pool.ok()) {
      return {host_pool.status().code(),
              absl::StrCat("--host_cache_bytes: ", host_pool.status().message())};
    }
    host_pool_ = *std::move(host_pool);
    lane_.limits.host_pool = host_pool_.get();
  }
  for (StreamOwner* stream : {&lane_.upload, &lane_.compute, &lane_.readback}) {
    auto made = MakeStream();
    if (!made.ok()) return made.status();
    *stream = *std::move(made);
  }
  auto uploader = CudaUpload::Create(kUploadChunks, kUploadChunkBytes);
  if (!uploader.ok()) return uploader.status();
  lane_.uploader = *std::move(uploader);
  MutexLock lock(mutex_);
  for (int i = 0; i < lane_.limits.max_batches_in_flight; ++i) {
    auto flight = CudaFlight::Create(lane_, metrics_, arena_bytes);
    if (!flight.ok()) return flight.status();
    idle_.push_back(*std::move(flight));
    ++num_flights_;
  }
  return absl::OkStatus();
}

void CudaBackend::Submit(std::unique_ptr<Batch> batch, BatchDone done) {
  MutexLock lock(mutex_);
  Job& job = jobs_.emplace_back();
  job.batch = std::move(batch);
  job.done = std::move(done);
  changed_.notify_all();
}

void CudaBackend::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    if (!packing_.joinable()) packed_ = true;
    changed_.notify_all();
  }
  if (packing_.joinable()) packing_.join();
  if (completing_.joinable()) completing_.join();
}

// The next batch with a flight for it; false once all have been taken and none will come.
bool CudaBackend::TakeJob(Job& job) {
  MutexLock lock(mutex_);
  const auto ready = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (jobs_.empty()) return stopping_;
    // What it overwrites, an earlier batch may have to read again.
    const auto needed = jobs_.front().batch->rewrites ? static_cast<std::size_t>(num_flights_) : 1;
    return idle_.size() >= needed;
  };
  while (!ready()) changed_.wait(mutex_);
  if (jobs_.empty()) {
    packed_ = true;
    changed_.notify_all();
    return false;
  }
  job = std::move(jobs_.front());
  jobs_.pop_front();
  job.flight = std::move(idle_.back());
  idle_.pop_back();
  job.result.status = fault_;
  return true;
}

void CudaBackend::Pack() {
  cudaSetDevice(device_index_);
  for (Job job; TakeJob(job); job = {}) {
    if (job.result.status.ok()) job.result.status = LaunchBatch(job);
    MutexLock lock(mutex_);
    if (fault_.ok()) fault_ = job.result.status;
    launched_.push_back(std::move(job));
    changed_.notify_all();
  }
}

absl::Status CudaBackend::LaunchBatch(Job& job) {
  return LaunchSpans(job, WholeItems(*job.batch), job.batch->copies, /*last=*/true);
}

// One launch, or several where tensors and working memory of all together do not fit.
absl::Status CudaBackend::LaunchSpans(Job& job, const std::vector<ItemSpan>& spans,
                                      std::span<const PageCopy> copies, bool last) {
  absl::Status status = job.flight->Launch(*job.batch, spans, copies);
  if (absl::IsResourceExhausted(status)) {
    std::vector<ItemSpan> first;
    std::vector<ItemSpan> second;
    if (!HalveSpans(spans, first, second)) return absl::InternalError(status.message());
    status = LaunchSpans(job, first, copies, /*last=*/false);
    return status.ok() ? LaunchSpans(job, second, {}, last) : status;
  }
  if (status.ok() && !last) status = job.flight->Finish(job.result.kernel_time);
  return status;
}

void CudaBackend::Complete() {
  cudaSetDevice(device_index_);
  while (true) {
    Job job;
    {
      MutexLock lock(mutex_);
      while (launched_.empty() && !packed_) changed_.wait(mutex_);
      if (launched_.empty()) return;
      job = std::move(launched_.front());
      launched_.pop_front();
    }
    if (job.result.status.ok()) job.result.status = job.flight->Finish(job.result.kernel_time);
    {
      MutexLock lock(mutex_);
      if (fault_.ok()) fault_ = job.result.status;
      idle_.push_back(std::move(job.flight));
      changed_.notify_all();
    }
    job.done(std::move(job.batch), std::move(job.result));
  }
}

double CudaBackend::MeasureReadBandwidth() {
  if (cudaSetDevice(device_index_) != cudaSuccess) return 0;
  return kernels::MeasureCudaCeilings(kCeilingSeconds).read_bytes_per_second;
}

}  // namespace attnd
