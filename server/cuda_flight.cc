#include "server/cuda_flight.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/page_copy.h"

namespace attnd {
namespace {

constexpr std::int64_t kReadbackChunkBytes = std::int64_t{4} << 20;
constexpr kernels::CudaLaunchStatus kNoFaults{};

absl::Status TooLarge() {
  return absl::ResourceExhaustedError("the launch does not fit into its device memory");
}

absl::Status LaunchError(kernels::LaunchStatus status, const char* kernel) {
  switch (status) {
    case kernels::LaunchStatus::kOk:
      return absl::OkStatus();
    case kernels::LaunchStatus::kUnsupported:
      return absl::InternalError(absl::StrCat(kernel, ": the launch is not supported"));
    default:
      return absl::InternalError(
          absl::StrCat(kernel, ": the device failed: ", cudaGetErrorString(cudaPeekAtLastError())));
  }
}

absl::Status FaultStatus(const kernels::CudaLaunchStatus& report, const char* kernel) {
  if ((report.faults & kernels::kCudaPageOutOfPool) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(kernel, ": a page lies outside the pool"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaFlight>> CudaFlight::Create(CudaLane& lane, Metrics& metrics,
                                                               std::int64_t arena_bytes) {
  std::unique_ptr<CudaFlight> flight(new CudaFlight(lane, metrics, arena_bytes));
  auto arena = AllocateDevice(arena_bytes);
  if (!arena.ok()) return arena.status();
  flight->arena_ = *std::move(arena);
  auto readback = CudaReadback::Create(kReadbackChunkBytes);
  if (!readback.ok()) return readback.status();
  flight->readback_ = *std::move(readback);
  auto reports = AllocatePinned(sizeof(Reports));
  if (!reports.ok()) return reports.status();
  flight->reports_memory_ = *std::move(reports);
  flight->reports_ = reinterpret_cast<Reports*>(flight->reports_memory_.get());
  for (EventOwner& mark : flight->marks_) {
    auto event = MakeEvent(/*timing=*/true);
    if (!event.ok()) return event.status();
    mark = *std::move(event);
  }
  auto reported = MakeEvent(/*timing=*/false);
  if (!reported.ok()) return reported.status();
  flight->reported_ = *std::move(reported);
  return flight;
}

absl::Status CudaFlight::Launch(Batch& batch, std::span<const ItemSpan> spans,
                                std::span<const PageCopy> copies) {
  cudaStream_t compute = lane_.compute.get();
  absl::Status status = Prepare(batch, spans);
  if (status.ok()) status = Upload();
  // Before the mark: pages on their way to the host and back are no time of this batch's kernels.
  if (status.ok()) status = CopyPages(batch, copies, /*moving=*/true);
  if (status.ok()) status = Record(kBegin, compute);
  if (status.ok()) status = CopyPages(batch, copies, /*moving=*/false);
  if (status.ok()) status = Append(batch);
  if (status.ok()) status = Record(kAppended, compute);
  if (status.ok()) status = Rotate(batch);
  if (status.ok()) status = Record(kRotated, compute);
  if (status.ok()) status = Attend(batch);
  if (status.ok()) status = Record(kEnd, compute);
  if (status.ok()) status = StartReadback();
  return status;
}

absl::Status CudaFlight::Prepare(Batch& batch, std::span<const ItemSpan> spans) {
  if (!LayOut(batch, spans, arena_.get(), arena_bytes_, layout_)) return TooLarge();
  append_ = {};
  append_.sequences = layout_.appends.data();
  append_.num_sequences = static_cast<std::int32_t>(layout_.appends.size());
  append_.page_layout = batch.page_layout;
  append_.pool = lane_.limits.pool;
  append_.pool_bytes = lane_.limits.pool_bytes;
  if (!layout_.appends.empty()) {
    append_array_ = layout_.AddInput(
        layout_.appends.data(),
        static_cast<std::int64_t>(layout_.appends.size() * sizeof(kernels::AppendSequence)));
    append_status_ = layout_.AddInput(&kNoFaults, sizeof(kNoFaults));
  }
  if (!layout_.rotations.empty()) {
    rotation_array_ = layout_.AddInput(
        layout_.rotations.data(),
        static_cast<std::int64_t>(layout_.rotations.size() * sizeof(kernels::QueryRotation)));
  }
  plan_ = {};
  if (!layout_.sequences.empty()) {
    if (absl::Status status = PlanAttention(batch); !status.ok()) return status;
  }
  return layout_.inputs_end <= layout_.outputs_begin ? absl::OkStatus() : TooLarge();
}

absl::Status CudaFlight::PlanAttention(Batch& batch) {
  kernels::AttentionParams& params = attention_;
  params = {};
  params.data_type = batch.shape.data_type;
  params.kv_data_type = batch.shape.kv_data_type;
  params.num_heads = batch.shape.num_heads;
  params.num_kv_heads = batch.shape.num_kv_heads;
  params.head_dim = batch.shape.head_dim;
  params.partial = batch.shape.partial;
  params.sequences = layout_.sequences.data();
  params.num_sequences = static_cast<std::int32_t>(layout_.sequences.size());
  params.page_layout = batch.page_layout;
  params.pool = lane_.limits.pool;
  params.pool_bytes = lane_.limits.pool_bytes;
  const kernels::DeviceLimits& device = lane_.limits.device;
  const kernels::KernelRow* row = FindRow(batch.shape, device);
  if (row == nullptr) return absl::InternalError("no kernel serves an admitted batch");
  plan_ = kernels::PlanCudaAttention(*row, params, device, batch.plan_options);
  if (plan_.attention.row == nullptr) {
    return absl::InternalError(absl::StrCat(row->name, " does not serve an admitted batch"));
  }
  plan_upload_.resize(static_cast<std::size_t>(plan_.upload_bytes));
  workspace_ = layout_.AddInput(plan_upload_.data(), plan_.upload_bytes);
  if (workspace_ + plan_.attention.workspace_bytes > layout_.outputs_begin) return TooLarge();
  kernels::EncodeCudaAttention(plan_, params, At(workspace_), plan_upload_.data());
  return absl::OkStatus();
}

absl::Status CudaFlight::Upload() {
  cudaStream_t stream = lane_.upload.get();
  absl::Status status = Record(kUploadBegin, stream);
  if (status.ok()) status = lane_.uploader.Copy(layout_.inputs, arena_.get(), stream);
  if (status.ok()) status = Record(kUploaded, stream);
  if (!status.ok()) return status;
  return CudaStatus(cudaStreamWaitEvent(lane_.compute.get(), marks_[kUploaded].get(), 0),
                    "ordering streams");
}

// Moves come before all other copies of a batch. The compute stream keeps them in order with what
// earlier launches read and this one writes.
absl::Status CudaFlight::CopyPages(const Batch& batch, std::span<const PageCopy> copies,
                                   bool moving) {
  for (const PageCopy& copy : copies) {
    if ((copy.kind != PageCopy::Kind::kInPool) != moving) continue;
    const auto places = PlacesOf(copy, batch.page_layout, lane_.limits);
    if (!places.ok()) return places.status();
    const cudaMemcpyKind direction = copy.kind == PageCopy::Kind::kToHost ? cudaMemcpyDeviceToHost
                                     : copy.kind == PageCopy::Kind::kFromHost
                                         ? cudaMemcpyHostToDevice
                                         : cudaMemcpyDeviceToDevice;
    const cudaError_t error =
        cudaMemcpyAsync(places->to, places->from, places->bytes, direction, lane_.compute.get());
    if (error != cudaSuccess) return CudaStatus(error, "page copy");
  }
  return absl::OkStatus();
}

absl::Status CudaFlight::Append(Batch& batch) {
  if (layout_.appends.empty()) return absl::OkStatus();
  const kernels::LaunchStatus launched = kernels::LaunchCudaAppend(
      append_, reinterpret_cast<const kernels::AppendSequence*>(At(append_array_)),
      reinterpret_cast<kernels::CudaLaunchStatus*>(At(append_status_)), lane_.compute.get());
  std::vector<const char*>& names = batch.report.kernels;
  if (names.empty() || names.front() != lane_.append_name) {
    names.insert(names.begin(), lane_.append_name);
  }
  return LaunchError(launched, lane_.append_name);
}

absl::Status CudaFlight::Rotate(const Batch& batch) {
  if (layout_.rotations.empty()) return absl::OkStatus();
  const kernels::LaunchStatus launched = kernels::LaunchCudaRotateQueries(
      layout_.rotations, reinterpret_cast<const kernels::QueryRotation*>(At(rotation_array_)),
      batch.shape.data_type, batch.shape.num_heads, batch.shape.head_dim, lane_.compute.get());
  return LaunchError(launched, "rotation of queries");
}

absl::Status CudaFlight::Attend(Batch& batch) {
  if (plan_.attention.row == nullptr) return absl::OkStatus();
  const char* name = plan_.attention.row->name;
  const kernels::LaunchStatus launched =
      kernels::LaunchCudaAttention(plan_, At(workspace_), lane_.compute.get());
  BatchReport& report = batch.report;
  if (report.kernels.empty() || report.kernels.back() != name) report.kernels.push_back(name);
  report.num_splits = std::max(report.num_splits, plan_.attention.num_splits);
  return LaunchError(launched, name);
}

absl::Status CudaFlight::StartReadback() {
  cudaStream_t stream = lane_.readback.get();
  cudaError_t error = cudaStreamWaitEvent(stream, marks_[kEnd].get(), 0);
  *reports_ = {};
  if (error == cudaSuccess && !layout_.appends.empty()) {
    error = cudaMemcpyAsync(&reports_->append, At(append_status_), sizeof(reports_->append),
                            cudaMemcpyDeviceToHost, stream);
  }
  if (error == cudaSuccess && plan_.attention.row != nullptr) {
    error = cudaMemcpyAsync(&reports_->attention, At(workspace_ + plan_.status_offset),
                            sizeof(reports_->attention), cudaMemcpyDeviceToHost, stream);
  }
  if (error == cudaSuccess) error = cudaEventRecord(reported_.get(), stream);
  if (error != cudaSuccess) return CudaStatus(error, "reading back");
  return readback_.Begin(layout_.outputs, arena_.get(), layout_.outputs_begin, layout_.outputs_end,
                         stream);
}

absl::Status CudaFlight::Finish(Clock::Duration& kernel_time) {
  absl::Status status = AwaitEvent(reported_.get());
  if (!status.ok()) return status;
  const auto kernels_done = std::chrono::steady_clock::now();
  // Read before a rerun moves the last mark.
  const double append_seconds = layout_.appends.empty() ? 0 : SecondsOf(kBegin, kAppended);
  const double attention_seconds = SecondsOf(kRotated, kEnd);
  double seconds = SecondsOf(kBegin, kEnd);
  status = FaultStatus(reports_->append, lane_.append_name);
  if (status.ok() && plan_.attention.row != nullptr) {
    status = FaultStatus(reports_->attention, plan_.attention.row->name);
  }
  if (!status.ok()) return status;
  RecordMetrics(append_seconds, attention_seconds);
  if (reports_->attention.nonfinite_tiles > 0) {
    status = RerunNonfinite();
    if (!status.ok()) return status;
    seconds += SecondsOf(kBegin, kEnd);
  }
  status = readback_.Finish();
  const auto duration = std::chrono::duration<double>(seconds);
  const auto kernels = std::chrono::duration_cast<Clock::Duration>(duration);
  kernel_time += kernels;
  metrics_.RecordStage(Stage::kKernel, kernels);
  metrics_.RecordStage(Stage::kDeviceToHost, std::chrono::steady_clock::now() - kernels_done);
  return status;
}

void CudaFlight::RecordMetrics(double append_seconds, double attention_seconds) {
  metrics_.RecordStage(Stage::kHostToDevice,
                       std::chrono::duration_cast<Clock::Duration>(
                           std::chrono::duration<double>(SecondsOf(kUploadBegin, kUploaded))));
  LaunchRecord record;
  record.device = lane_.limits.device_name;
  if (!layout_.appends.empty()) {
    record.kernel = lane_.append_name;
    record.seconds = append_seconds;
    record.cost = kernels::AppendCost(append_);
    metrics_.RecordLaunch(record);
  }
  if (plan_.attention.row == nullptr) return;
  record.kernel = plan_.attention.row->name;
  record.seconds = attention_seconds;
  record.cost = plan_.attention.cost;
  record.exact_reruns = reports_->attention.nonfinite_tiles;
  metrics_.RecordLaunch(record);
}

// A hidden value may have met a weight of 0: the exact row tells. Rare, so it is planned only when
// it is needed, and later batches are already queued: see Batch::rewrites.
absl::Status CudaFlight::RerunNonfinite() {
  cudaStream_t compute = lane_.compute.get();
  const kernels::CudaPlan rerun = kernels::PlanCudaRerun(plan_, attention_, At(workspace_));
  if (rerun.attention.row == nullptr) return absl::InternalError("no exact kernel for a rerun");
  const char* name = rerun.attention.row->name;
  std::int64_t offset = workspace_ + plan_.attention.workspace_bytes;
  offset = (offset + CudaLayout::kAlignment - 1) / CudaLayout::kAlignment * CudaLayout::kAlignment;
  std::byte* workspace = At(offset);
  DeviceMemory own;
  if (offset + rerun.attention.workspace_bytes > layout_.outputs_begin) {
    auto memory = AllocateDevice(rerun.attention.workspace_bytes);
    if (!memory.ok()) return absl::InternalError(memory.status().message());
    own = *std::move(memory);
    workspace = own.get();
  }
  std::vector<std::byte> upload(static_cast<std::size_t>(rerun.upload_bytes));
  kernels::EncodeCudaAttention(rerun, attention_, workspace, upload.data());
  absl::Status status = Record(kBegin, compute);
  if (!status.ok()) return status;
  cudaError_t error =
      cudaMemcpyAsync(workspace, upload.data(), upload.size(), cudaMemcpyHostToDevice, compute);
  if (error != cudaSuccess) return CudaStatus(error, name);
  status = LaunchError(kernels::LaunchCudaAttention(rerun, workspace, compute), name);
  if (status.ok()) status = Record(kEnd, compute);
  if (!status.ok()) return status;
  error = cudaStreamWaitEvent(lane_.readback.get(), marks_[kEnd].get(), 0);
  if (error == cudaSuccess) {
    error =
        cudaMemcpyAsync(&reports_->attention, workspace + rerun.status_offset,
                        sizeof(reports_->attention), cudaMemcpyDeviceToHost, lane_.readback.get());
  }
  if (error == cudaSuccess) error = cudaEventRecord(reported_.get(), lane_.readback.get());
  if (error != cudaSuccess) return CudaStatus(error, name);
  status = AwaitEvent(reported_.get());
  if (status.ok()) status = FaultStatus(reports_->attention, name);
  if (!status.ok()) return status;
  LaunchRecord record;
  record.kernel = name;
  record.device = lane_.limits.device_name;
  record.seconds = SecondsOf(kBegin, kEnd);
  record.cost = rerun.attention.cost;
  metrics_.RecordLaunch(record);
  return readback_.Begin(layout_.outputs, arena_.get(), layout_.outputs_begin, layout_.outputs_end,
                         lane_.readback.get());
}

absl::Status CudaFlight::Record(Mark mark, cudaStream_t stream) {
  return CudaStatus(cudaEventRecord(marks_[mark].get(), stream), "recording an event");
}

double CudaFlight::SecondsOf(Mark begin, Mark end) const {
  return SecondsBetween(marks_[begin].get(), marks_[end].get());
}

}  // namespace attnd
