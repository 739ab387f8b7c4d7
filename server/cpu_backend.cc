#include "server/cpu_backend.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/cpu_workspace.h"
#include "server/page_copy.h"
#include "server/page_pool.h"

namespace attnd {
namespace {

constexpr std::align_val_t kWorkspaceAlignment{128};
// Each of the ceilings' measurements; they delay readiness.
constexpr double kCeilingSeconds = 0.15;
// A larger workspace (naive scores) is given back after its launch.
constexpr std::int64_t kKeptWorkspaceBytes = std::int64_t{256} << 20;

void FreeWorkspace(std::byte* memory) { ::operator delete(memory, kWorkspaceAlignment); }

std::string CpuModelName() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "cpu";
}

const char* AppendRowName() {
  for (const kernels::KernelRow& row : kernels::KernelTable()) {
    if (row.operation == kernels::Operation::kAppend && row.device == kernels::DeviceKind::kCpu) {
      return row.name;
    }
  }
  return "cpu/append";
}

absl::Status StatusOf(kernels::LaunchStatus status, const char* kernel) {
  switch (status) {
    case kernels::LaunchStatus::kOk:
      return absl::OkStatus();
    case kernels::LaunchStatus::kPageOutOfPool:
      return absl::InternalError(absl::StrCat(kernel, ": a page lies outside the pool"));
    case kernels::LaunchStatus::kUnsupported:
      return absl::InternalError(absl::StrCat(kernel, ": the launch is not supported"));
    case kernels::LaunchStatus::kDeviceFault:
      return absl::InternalError(absl::StrCat(kernel, ": the device failed"));
  }
  return absl::InternalError(kernel);
}

// Whether one thread has done the batch in some 50 us: waking another one takes about as long, and
// a gRPC thread is not held up for longer than by parsing a request.
bool IsSmall(const Batch& batch) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 20;
  constexpr std::int64_t kMostFlops = 4'000'000;
  if (!batch.copies.empty() || batch.shape.operation == kernels::Operation::kNaive) return false;
  const ShapeClass& shape = batch.shape;
  const std::int64_t kv_token_bytes = std::int64_t{2} * shape.num_kv_heads * shape.head_dim *
                                      kernels::ElementBytes(shape.kv_data_type);
  const std::int64_t q_token_bytes =
      std::int64_t{shape.num_heads} * shape.head_dim * kernels::ElementBytes(shape.data_type);
  std::int64_t bytes = 0;
  std::int64_t flops = 0;
  for (const BatchItem& item : batch.items) {
    if (item.appends) bytes += item.append.num_tokens * kv_token_bytes;
    if (item.attends) {
      const kernels::AttentionSequence& sequence = item.attention;
      bytes += sequence.kv_length * kv_token_bytes + sequence.query_length * q_token_bytes;
      flops += std::int64_t{4} * sequence.query_length * sequence.kv_length * shape.num_heads *
               shape.head_dim;
    }
    if (bytes > kMostBytes || flops > kMostFlops) return false;
  }
  return true;
}

double Seconds(Clock::Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

class CpuBackend::Pool {
 public:
  static absl::StatusOr<std::unique_ptr<Pool>> Map(std::int64_t bytes) {
    // One slab more than asked for, so that the first one can start on a huge page.
    const auto mapped = static_cast<std::size_t>(bytes + PagePool::kSlabBytes);
    void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot map a page pool of ", bytes, " bytes: ", std::strerror(errno)));
    }
    madvise(memory, mapped, MADV_HUGEPAGE);  // advice: works without
    return std::unique_ptr<Pool>(new Pool(memory, mapped));
  }
  ~Pool() { munmap(memory_, mapped_); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  std::byte* data() const {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_);
    constexpr std::uintptr_t kSlab = PagePool::kSlabBytes;
    return static_cast<std::byte*>(memory_) + (kSlab - address % kSlab) % kSlab;
  }

 private:
  Pool(void* memory, std::size_t mapped) : memory_(memory), mapped_(mapped) {}
  void* memory_;
  std::size_t mapped_;
};

absl::StatusOr<std::unique_ptr<CpuBackend>> CpuBackend::Create(const ServerConfig& config,
                                                               const Clock& clock,
                                                               Metrics& metrics) {
  if (config.threads < 1 || config.cache_bytes < PagePool::kSlabBytes ||
      config.workspace_bytes < 1) {
    return absl::InvalidArgumentError(
        "threads, cache_bytes (at least 2 MiB) and workspace_bytes must be resolved");
  }
  auto pool = Pool::Map(config.cache_bytes);
  if (!pool.ok()) return pool.status();
  BackendLimits limits;
  limits.device.kind = kernels::DeviceKind::kCpu;
  limits.device.cpu_target =
      config.cpu_target == kernels::CpuTarget::kAuto ? kernels::BestCpuTarget() : config.cpu_target;
  limits.device.num_threads = config.threads;
  limits.device_name = "cpu";
  limits.description = CpuModelName();
  limits.kernel_arch = kernels::CpuTargetName(limits.device.cpu_target);
  limits.memory_bytes = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                        static_cast<std::uint64_t>(sysconf(_SC_PAGE_SIZE));
  limits.workspace_bytes = config.workspace_bytes;
  if (absl::Status status = CheckWorkspace(config, limits.device); !status.ok()) return status;
  limits.pool = (*pool)->data();
  limits.pool_bytes = config.cache_bytes;
  std::unique_ptr<Pool> host_pool;
  if (config.host_cache_bytes > 0) {
    auto mapped = Pool::Map(config.host_cache_bytes);
    if (!mapped.ok()) return mapped.status();
    host_pool = *std::move(mapped);
    limits.host_pool = host_pool->data();
    limits.host_pool_bytes = config.host_cache_bytes;
  }
  return std::unique_ptr<CpuBackend>(
      new CpuBackend(limits, *std::move(pool), std::move(host_pool), clock, metrics));
}

CpuBackend::CpuBackend(const BackendLimits& limits, std::unique_ptr<Pool> pool,
                       std::unique_ptr<Pool> host_pool, const Clock& clock, Metrics& metrics)
    : limits_(limits),
      pool_(std::move(pool)),
      host_pool_(std::move(host_pool)),
      clock_(clock),
      metrics_(metrics),
      executor_(limits.device.num_threads),
      append_name_(AppendRowName()),
      workspace_(nullptr, &FreeWorkspace) {
  thread_ = std::thread([this] { Run(); });
}

CpuBackend::~CpuBackend() { Stop(); }

void CpuBackend::Submit(std::unique_ptr<Batch> batch, BatchDone done) {
  MutexLock lock(mutex_);
  jobs_.push_back({std::move(batch), std::move(done)});
  work_arrived_.notify_one();
}

absl::AnyInvocable<void()> CpuBackend::SubmitHere(std::unique_ptr<Batch>& batch, BatchDone& done) {
  if (!IsSmall(*batch)) return nullptr;
  {
    MutexLock lock(mutex_);
    if (busy_ || !jobs_.empty()) return nullptr;
    busy_ = true;
  }
  return
      [this, job = Job{std::move(batch), std::move(done)}]() mutable { RunHere(std::move(job)); };
}

void CpuBackend::RunHere(Job job) {
  BatchResult result = RunBatch(*job.batch);
  {
    MutexLock lock(mutex_);
    busy_ = false;
    // What was submitted meanwhile, or a Stop, waits for this batch.
    if (!jobs_.empty() || stopping_) work_arrived_.notify_one();
  }
  job.done(std::move(job.batch), std::move(result));
}

void CpuBackend::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    work_arrived_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void CpuBackend::Run() {
  while (true) {
    Job job;
    {
      MutexLock lock(mutex_);
      while (busy_ || (jobs_.empty() && !stopping_)) work_arrived_.wait(mutex_);
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
      busy_ = true;
    }
    BatchResult result = RunBatch(*job.batch);
    {
      MutexLock lock(mutex_);
      busy_ = false;
    }
    job.done(std::move(job.batch), std::move(result));
  }
}

BatchResult CpuBackend::RunBatch(Batch& batch) {
  BatchResult result;
  const Clock::TimePoint start = clock_.Now();
  Stage(batch);
  const Clock::TimePoint staged = clock_.Now();
  metrics_.RecordStage(Stage::kHostToDevice, staged - start);
  result.status = CopyPages(batch);
  if (result.status.ok()) result.status = Append(batch);
  if (result.status.ok()) {
    result.status = Attend(batch, sequences_.data(), static_cast<int>(sequences_.size()));
  }
  result.kernel_time = clock_.Now() - staged;
  metrics_.RecordStage(Stage::kKernel, result.kernel_time);
  staging_.Clear();
  if (workspace_bytes_ > kKeptWorkspaceBytes) {
    workspace_.reset();
    workspace_bytes_ = 0;
  }
  return result;
}

void CpuBackend::Stage(Batch& batch) {
  const int q_bytes = kernels::ElementBytes(batch.shape.data_type);
  const int kv_bytes = kernels::ElementBytes(batch.shape.kv_data_type);
  sequences_.clear();
  appends_.clear();
  for (BatchItem& item : batch.items) {
    const std::byte* k = nullptr;
    const std::byte* v = nullptr;
    if (item.staged != nullptr) {
      k = CpuStaging::Resolve(item.k, kv_bytes, item.staged->k);
      v = CpuStaging::Resolve(item.v, kv_bytes, item.staged->v);
    } else {
      k = staging_.Resolve(item.k, kv_bytes);
      v = staging_.Resolve(item.v, kv_bytes);
    }
    if (item.appends) {
      item.append.k = k;
      item.append.v = v;
      appends_.push_back(item.append);
    }
    if (!item.attends) continue;
    kernels::AttentionSequence& attention = item.attention;
    if (batch.shape.page_tokens == 0) {
      attention.kv.k = k;
      attention.kv.v = v;
    }
    if (item.bias.tensor != nullptr) {
      const std::byte* bias = item.staged != nullptr
                                  ? CpuStaging::Resolve(item.bias, 4, item.staged->bias)
                                  : staging_.Resolve(item.bias, 4);
      if (bias != nullptr) {
        attention.bias =
            reinterpret_cast<const float*>(bias) + item.bias_first_row * attention.bias_row_stride;
      }
    }
    if (item.rope.enabled) {
      std::byte* q = staging_.Copy(item.q);
      kernels::RotateQueries(q, batch.shape.data_type, attention.query_length,
                             batch.shape.num_heads, batch.shape.head_dim, attention.query_position,
                             item.rope);
      attention.q = q;
    } else {
      attention.q = staging_.Resolve(item.q, q_bytes);
    }
    sequences_.push_back(attention);
  }
}

absl::Status CpuBackend::CopyPages(const Batch& batch) {
  for (const PageCopy& copy : batch.copies) {
    const auto places = PlacesOf(copy, batch.page_layout, limits_);
    if (!places.ok()) return places.status();
    std::memcpy(places->to, places->from, places->bytes);
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::Append(Batch& batch) {
  if (appends_.empty()) return absl::OkStatus();
  kernels::AppendParams params;
  params.sequences = appends_.data();
  params.num_sequences = static_cast<std::int32_t>(appends_.size());
  params.page_layout = batch.page_layout;
  params.pool = limits_.pool;
  params.pool_bytes = limits_.pool_bytes;
  const Clock::TimePoint start = clock_.Now();
  const kernels::LaunchResult launched = kernels::LaunchAppend(params, executor_);
  LaunchRecord record;
  record.kernel = append_name_;
  record.device = limits_.device_name;
  record.seconds = Seconds(clock_.Now() - start);
  record.cost = kernels::AppendCost(params);
  metrics_.RecordLaunch(record);
  batch.report.kernels.push_back(append_name_);
  return StatusOf(launched.status, append_name_);
}

// One launch, or several where the working memory of all together would pass the limit.
absl::Status CpuBackend::Attend(Batch& batch, const kernels::AttentionSequence* sequences,
                                int count) {
  if (count == 0) return absl::OkStatus();
  kernels::AttentionParams params;
  params.data_type = batch.shape.data_type;
  params.kv_data_type = batch.shape.kv_data_type;
  params.num_heads = batch.shape.num_heads;
  params.num_kv_heads = batch.shape.num_kv_heads;
  params.head_dim = batch.shape.head_dim;
  params.partial = batch.shape.partial;
  params.sequences = sequences;
  params.num_sequences = count;
  params.page_layout = batch.page_layout;
  params.pool = limits_.pool;
  params.pool_bytes = limits_.pool_bytes;
  const kernels::KernelRow* row = FindRow(batch.shape, limits_.device);
  if (row == nullptr) return absl::InternalError("no kernel serves an admitted batch");
  const kernels::LaunchPlan plan =
      kernels::PlanAttention(*row, params, limits_.device, batch.plan_options);
  if (plan.workspace_bytes > limits_.workspace_bytes && count > 1) {
    const int half = count / 2;
    absl::Status status = Attend(batch, sequences, half);
    if (status.ok()) status = Attend(batch, sequences + half, count - half);
    return status;
  }
  return LaunchAttention(batch, plan, params);
}

absl::Status CpuBackend::LaunchAttention(Batch& batch, const kernels::LaunchPlan& plan,
                                         const kernels::AttentionParams& params) {
  std::byte* workspace = Workspace(plan.workspace_bytes);
  const Clock::TimePoint start = clock_.Now();
  const kernels::LaunchResult launched = kernels::Launch(plan, params, workspace, executor_);
  LaunchRecord record;
  record.kernel = plan.row->name;
  record.device = limits_.device_name;
  record.seconds = Seconds(clock_.Now() - start);
  record.cost = plan.cost;
  record.exact_reruns = launched.exact_reruns;
  metrics_.RecordLaunch(record);
  BatchReport& report = batch.report;
  if (report.kernels.empty() || report.kernels.back() != plan.row->name) {
    report.kernels.push_back(plan.row->name);
  }
  report.num_splits = std::max(report.num_splits, plan.num_splits);
  return StatusOf(launched.status, plan.row->name);
}

std::byte* CpuBackend::Workspace(std::int64_t bytes) {
  if (bytes > workspace_bytes_) {
    workspace_.reset();  // first: two of them at once could pass the memory
    workspace_.reset(static_cast<std::byte*>(
        ::operator new(static_cast<std::size_t>(bytes), kWorkspaceAlignment)));
    workspace_bytes_ = bytes;
  }
  return workspace_.get();
}

double CpuBackend::MeasureReadBandwidth() {
  return kernels::MeasureCpuCeilings(limits_.device.cpu_target, executor_, kCeilingSeconds)
      .read_bytes_per_second;
}

}  // namespace attnd
