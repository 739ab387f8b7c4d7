// Whether --workspace_bytes lets the CPU's kernels run at all.
#pragma once

#include "absl/status/status.h"
#include "kernels/attention_kernels.h"
#include "server/server_config.h"

namespace attnd {

// INVALID_ARGUMENT names the least value: the working memory of the smallest launch of any fused
// kernel at a usual head size. With less hardly a request could be served.
absl::Status CheckWorkspace(const ServerConfig& config, const kernels::DeviceLimits& device);

}  // namespace attnd
