// Tensors of a real model as a scenario's input.
#pragma once

#include "absl/status/statusor.h"
#include "client/tensor.h"
#include "loadtest/scenario.h"

namespace attnd::loadtest {

struct CapturedTensors {
  client::Tensor q, k, v;
};

// <prefix>q, <prefix>k and <prefix>v of the scenario's capture file. NOT_FOUND or INVALID_ARGUMENT:
// the file, a name in it, or shapes that are no [tokens, heads, head_dim] of one head_dim.
absl::StatusOr<CapturedTensors> ReadCapture(const Scenario& scenario);

// Gives a scenario with a capture the file's type and shape, so that reports tell the real one.
// Other scenarios stay as they are.
absl::Status ResolveCapture(Scenario& scenario);

}  // namespace attnd::loadtest
