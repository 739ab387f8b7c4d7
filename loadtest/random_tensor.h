// Values for synthetic load: uniform, mean 0, variance 1, so that scores look like a model's.
#pragma once

#include <cstdint>
#include <vector>

#include "client/tensor.h"

namespace attnd::loadtest {

// type: FP32, FP16 or BF16. The same seed gives the same values.
client::Tensor RandomTensor(v1::DataType type, std::vector<std::int64_t> shape, std::uint64_t seed);

}  // namespace attnd::loadtest
