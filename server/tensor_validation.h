// WireTensor -> TensorView, or a status that names the field, what it got and what it needs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/attention_wire.h"

namespace attnd {

// "[2, 8, 64]".
std::string ShapeText(absl::Span<const std::int64_t> shape);

// OUT_OF_RANGE, REASON_LIMIT.
absl::Status OverLimit(std::string_view field, std::int64_t got, std::int64_t limit);

// In-band, FP32, FP16 or BF16, of the given rank, no dimension negative, exactly as many bytes as
// the shape needs. The product of the dimensions is computed without overflow, so that shapes whose
// size wraps around to the payload's are refused too. `owner` keeps the pieces alive.
absl::StatusOr<TensorView> ValidateTensor(std::string_view field, WireTensor tensor, int rank,
                                          std::shared_ptr<const void> owner);

// q, k and v of a request, each already valid with rank 3; absent ones are skipped. Heads, head
// dimension and data type fit together and fit the limits.
struct HeadShape {
  kernels::DataType data_type = kernels::DataType::kFp32;
  std::int32_t num_heads = 0, num_kv_heads = 0, head_dim = 0;  // 0: no tensor tells
};
absl::StatusOr<HeadShape> ValidateHeads(const TensorView& q, const TensorView& k,
                                        const TensorView& v, std::int64_t max_heads);

}  // namespace attnd
