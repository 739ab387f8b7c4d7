#include "server/cpu_workspace.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "server/flag_value.h"

namespace attnd {
namespace {

constexpr int kUsualHeadDim = 64;

std::int64_t LeastWorkspaceBytes(const kernels::DeviceLimits& device) {
  std::int64_t least = 1;
  for (const kernels::KernelRow& row : kernels::KernelTable()) {
    const bool fused = row.operation == kernels::Operation::kPrefill ||
                       row.operation == kernels::Operation::kDecode;
    if (row.device != device.kind || row.cpu_target > device.cpu_target || !fused) continue;
    kernels::AttentionSequence sequence;
    sequence.query_length = 1;
    sequence.kv_length = 1;
    kernels::AttentionParams params;
    params.num_heads = params.num_kv_heads = 1;
    params.head_dim = kUsualHeadDim;
    params.sequences = &sequence;
    params.num_sequences = 1;
    least = std::max(least, kernels::PlanAttention(row, params, device, {}).workspace_bytes);
  }
  return least;
}

}  // namespace

absl::Status CheckWorkspace(const ServerConfig& config, const kernels::DeviceLimits& device) {
  const std::int64_t least = LeastWorkspaceBytes(device);
  if (config.workspace_bytes >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--workspace_bytes: got '", FormatByteSize(config.workspace_bytes), "', need at least ",
      FormatByteSize(least), ", what the smallest launch at head size ", kUsualHeadDim,
      " takes with ", config.threads, " kernel threads"));
}

}  // namespace attnd
