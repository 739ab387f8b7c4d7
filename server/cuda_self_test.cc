// The CUDA backend's self-test: every attention row that a batch can select computes something
// whose result is known without an oracle. Loading a row's code, which the driver may first have to
// compile, happens here, before the server is ready.
#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/cuda_backend.h"

namespace attnd {
namespace {

constexpr int kHeads = 2, kQueries = 3, kKeys = 5;
// BF16 probabilities round to 2^-9 each.
constexpr float kTolerance = 0.01F;
constexpr kernels::DataType kTypes[] = {kernels::DataType::kFp32, kernels::DataType::kFp16,
                                        kernels::DataType::kBf16};

std::uint32_t OneAs(kernels::DataType type) {
  switch (type) {
    case kernels::DataType::kFp16:
      return 0x3C00;
    case kernels::DataType::kBf16:
      return 0x3F80;
    default:
      return 0x3F800000;
  }
}

// A row that FindKernel never gives on this device needs no code.
bool Selectable(const kernels::KernelRow& row, kernels::DataType type,
                const kernels::DeviceLimits& device) {
  const kernels::KernelKey key{row.operation, type, type, row.max_head_dim, row.features};
  return row.device == kernels::DeviceKind::kCuda && kernels::FindKernel(key, device) == &row;
}

bool Attends(const kernels::KernelRow& row) {
  return row.operation != kernels::Operation::kAppend &&
         row.operation != kernels::Operation::kMergeStates;
}

// Queries, keys and values in one piece of device memory, all 1; outputs behind them.
class Ones {
 public:
  static absl::StatusOr<Ones> Make(kernels::DataType type, int head_dim) {
    Ones ones;
    ones.element_bytes_ = kernels::ElementBytes(type);
    ones.head_dim_ = head_dim;
    const std::int64_t inputs = (kQueries * kHeads + kKeys) * std::int64_t{head_dim};
    std::vector<std::byte> host(static_cast<std::size_t>(inputs * ones.element_bytes_));
    const std::uint32_t one = OneAs(type);
    for (std::size_t at = 0; at < host.size();
         at += static_cast<std::size_t>(ones.element_bytes_)) {
      std::memcpy(host.data() + at, &one, static_cast<std::size_t>(ones.element_bytes_));
    }
    ones.outputs_ = (static_cast<std::int64_t>(host.size()) + 255) / 256 * 256;
    auto memory = AllocateDevice(ones.outputs_ + ones.output_bytes() + kQueries * kHeads * 4);
    if (!memory.ok()) return memory.status();
    ones.memory_ = *std::move(memory);
    const cudaError_t error =
        cudaMemcpy(ones.memory_.get(), host.data(), host.size(), cudaMemcpyHostToDevice);
    if (error != cudaSuccess) return CudaStatus(error, "self-test");
    return ones;
  }

  kernels::AttentionSequence Sequence() const {
    kernels::AttentionSequence sequence;
    sequence.q = memory_.get();
    sequence.q_token_stride = sequence.o_token_stride = std::int64_t{kHeads} * head_dim_;
    sequence.q_head_stride = sequence.o_head_stride = head_dim_;
    sequence.o = memory_.get() + outputs_;
    sequence.lse = reinterpret_cast<float*>(memory_.get() + outputs_ + output_bytes());
    sequence.kv.k = sequence.kv.v =
        memory_.get() + std::int64_t{kQueries} * kHeads * head_dim_ * element_bytes_;
    sequence.kv.k_token_stride = sequence.kv.v_token_stride = head_dim_;
    sequence.kv.k_head_stride = sequence.kv.v_head_stride = head_dim_;
    sequence.query_length = kQueries;
    sequence.kv_length = kKeys;
    sequence.query_position = kKeys - kQueries;
    sequence.causal = true;
    return sequence;
  }

  // Whatever the weights, every output is 1.
  bool Right() const {
    std::vector<float> o(static_cast<std::size_t>(output_bytes() / 4));
    const cudaError_t error =
        cudaMemcpy(o.data(), memory_.get() + outputs_, static_cast<std::size_t>(output_bytes()),
                   cudaMemcpyDeviceToHost);
    bool right = error == cudaSuccess;
    for (const float value : o) right = right && std::fabs(value - 1.0F) < kTolerance;
    return right;
  }

 private:
  std::int64_t output_bytes() const { return std::int64_t{kQueries} * kHeads * head_dim_ * 4; }
  DeviceMemory memory_;
  int element_bytes_ = 0, head_dim_ = 0;
  std::int64_t outputs_ = 0;
};

absl::Status TestRow(const kernels::KernelRow& row, kernels::DataType type,
                     const kernels::DeviceLimits& device, cudaStream_t stream) {
  if (kernels::PrepareCudaRow(row) != kernels::LaunchStatus::kOk) {
    return absl::InternalError(absl::StrCat("self-test: kernel ", row.name, " cannot be loaded: ",
                                            cudaGetErrorString(cudaGetLastError())));
  }
  auto ones = Ones::Make(type, row.max_head_dim);
  if (!ones.ok()) return ones.status();
  const kernels::AttentionSequence sequence = ones->Sequence();
  kernels::AttentionParams params;
  params.data_type = params.kv_data_type = type;
  params.num_heads = kHeads;
  params.num_kv_heads = 1;
  params.head_dim = row.max_head_dim;
  params.partial = true;  // FP32 outputs, whatever the type
  params.sequences = &sequence;
  params.num_sequences = 1;
  const kernels::LaunchResult launched = kernels::RunCudaAttention(row, params, device, {}, stream);
  if (launched.status == kernels::LaunchStatus::kOk && ones->Right()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("self-test: kernel ", row.name, " gave a wrong result"));
}

}  // namespace

absl::Status CudaBackend::SelfTest() {
  cudaSetDevice(device_index_);
  for (const kernels::KernelRow& row : kernels::KernelTable()) {
    if (!Attends(row)) continue;
    // Naive rows serve comparisons only; a machine without cuBLAS does without.
    if (row.operation == kernels::Operation::kNaive && kernels::CudaNaiveFault() != nullptr) {
      continue;
    }
    for (const kernels::DataType type : kTypes) {
      if ((row.data_types & kernels::TypeBit(type)) == 0) continue;
      if (!Selectable(row, type, lane_.limits.device)) continue;
      absl::Status status = TestRow(row, type, lane_.limits.device, lane_.compute.get());
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace attnd
