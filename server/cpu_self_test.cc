// The CPU backend's self-test: every attention row that this machine can select computes something
// whose result is known without an oracle.
#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/naive_library.h"
#include "server/cpu_backend.h"

namespace attnd {
namespace {

constexpr int kHeads = 2, kHeadDim = 16, kQueries = 3, kKeys = 5;

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

std::vector<std::byte> Ones(std::int64_t count, kernels::DataType type) {
  const int size = kernels::ElementBytes(type);
  const std::uint32_t one = OneAs(type);
  std::vector<std::byte> data(static_cast<std::size_t>(count * size));
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(data.data() + i * size, &one, static_cast<std::size_t>(size));
  }
  return data;
}

}  // namespace

absl::Status CpuBackend::SelfTest() {
  for (const kernels::KernelRow& row : kernels::KernelTable()) {
    if (row.device != kernels::DeviceKind::kCpu || row.launch == nullptr ||
        row.cpu_target > limits_.device.cpu_target) {
      continue;
    }
    // Naive rows serve comparisons only; an installation without their libraries does without.
    if (row.operation == kernels::Operation::kNaive &&
        kernels::NaiveFault(kernels::DeviceKind::kCpu) != nullptr) {
      continue;
    }
    for (const kernels::DataType type :
         {kernels::DataType::kFp32, kernels::DataType::kFp16, kernels::DataType::kBf16}) {
      if ((row.data_types & kernels::TypeBit(type)) == 0) continue;
      if (absl::Status status = TestRow(row, type); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

// All queries, keys and values are 1: whatever the weights, every output is 1.
absl::Status CpuBackend::TestRow(const kernels::KernelRow& row, kernels::DataType type) {
  const std::vector<std::byte> q = Ones(std::int64_t{kQueries} * kHeads * kHeadDim, type);
  const std::vector<std::byte> kv = Ones(std::int64_t{kKeys} * kHeadDim, type);
  std::vector<float> o(std::size_t{kQueries} * kHeads * kHeadDim, -1.0F);
  kernels::AttentionSequence sequence;
  sequence.q = q.data();
  sequence.q_token_stride = sequence.o_token_stride = std::int64_t{kHeads} * kHeadDim;
  sequence.q_head_stride = sequence.o_head_stride = kHeadDim;
  sequence.o = o.data();
  std::vector<float> lse(std::size_t{kQueries} * kHeads);
  sequence.lse = lse.data();
  sequence.kv.k = sequence.kv.v = kv.data();
  sequence.kv.k_token_stride = sequence.kv.v_token_stride = kHeadDim;
  sequence.kv.k_head_stride = sequence.kv.v_head_stride = kHeadDim;
  sequence.query_length = kQueries;
  sequence.kv_length = kKeys;
  sequence.query_position = kKeys - kQueries;
  sequence.causal = true;
  kernels::AttentionParams params;
  params.data_type = params.kv_data_type = type;
  params.num_heads = kHeads;
  params.num_kv_heads = 1;
  params.head_dim = kHeadDim;
  params.partial = true;  // FP32 outputs, whatever the type
  params.sequences = &sequence;
  params.num_sequences = 1;
  const kernels::LaunchPlan plan = kernels::PlanAttention(row, params, limits_.device, {});
  const kernels::LaunchResult launched =
      kernels::Launch(plan, params, Workspace(plan.workspace_bytes), executor_);
  bool right = launched.status == kernels::LaunchStatus::kOk;
  // BF16 probabilities round to 2^-9 each.
  constexpr float kTolerance = 0.01F;
  for (const float value : o) right = right && std::fabs(value - 1.0F) < kTolerance;
  if (right) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("self-test: kernel ", row.name, " gave a wrong result"));
}

}  // namespace attnd
