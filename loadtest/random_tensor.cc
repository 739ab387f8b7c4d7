#include "loadtest/random_tensor.h"

#include <cmath>
#include <random>
#include <utility>

namespace attnd::loadtest {

client::Tensor RandomTensor(v1::DataType type, std::vector<std::int64_t> shape,
                            std::uint64_t seed) {
  std::int64_t count = 1;
  for (const std::int64_t dimension : shape) count *= dimension;
  const float bound = std::sqrt(3.0F);
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(-bound, bound);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = uniform(random);
  return client::TensorFromFloats(type, std::move(shape), values).value();
}

}  // namespace attnd::loadtest
