#include "loadtest/capture.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/safetensors.h"

namespace attnd::loadtest {

absl::StatusOr<CapturedTensors> ReadCapture(const Scenario& scenario) {
  const absl::StatusOr<client::Safetensors> file = client::ReadSafetensors(scenario.capture);
  if (!file.ok()) return file.status();
  CapturedTensors tensors;
  for (const auto& [name, tensor] :
       {std::pair("q", &tensors.q), std::pair("k", &tensors.k), std::pair("v", &tensors.v)}) {
    absl::StatusOr<client::Tensor> found = file->Find(scenario.prefix + name);
    if (!found.ok()) {
      return absl::NotFoundError(absl::StrCat(scenario.capture, ": ", found.status().message()));
    }
    *tensor = *std::move(found);
  }
  const bool fits = tensors.q.shape.size() == 3 && tensors.k.shape.size() == 3 &&
                    tensors.k.shape == tensors.v.shape && tensors.q.shape[2] == tensors.k.shape[2];
  if (!fits) {
    return absl::InvalidArgumentError(
        absl::StrCat(scenario.capture, ": ", scenario.prefix,
                     "q, k and v are no [tokens, heads, head_dim] of one head_dim"));
  }
  return tensors;
}

absl::Status ResolveCapture(Scenario& scenario) {
  if (scenario.capture.empty()) return absl::OkStatus();
  const absl::StatusOr<CapturedTensors> tensors = ReadCapture(scenario);
  if (!tensors.ok()) return tensors.status();
  scenario.data_type = tensors->q.data_type;
  scenario.sequences = 1;
  scenario.tokens = static_cast<int>(tensors->q.shape[0]);
  scenario.heads = static_cast<int>(tensors->q.shape[1]);
  scenario.head_dim = static_cast<int>(tensors->q.shape[2]);
  scenario.kv_tokens = static_cast<int>(tensors->k.shape[0]);
  scenario.kv_heads = static_cast<int>(tensors->k.shape[1]);
  return absl::OkStatus();
}

}  // namespace attnd::loadtest
