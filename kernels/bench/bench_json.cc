#include "kernels/bench/bench_json.h"

#include <array>
#include <cstdio>
#include <cstdlib>

namespace attnd::kernels::bench {

double Rounded(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.4g", value);
  return std::atof(text.data());
}

Json ShapeJson(const BenchCase& shape) {
  return {{"sequences", shape.num_sequences},
          {"query_length", shape.query_length},
          {"kv_length", shape.kv_length},
          {"num_heads", shape.num_heads},
          {"num_kv_heads", shape.num_kv_heads},
          {"head_dim", shape.head_dim},
          {"causal", shape.causal},
          {"window_left", shape.window_left},
          {"page_tokens", shape.page_tokens},
          {"ascending_pages", shape.ascending_pages}};
}

}  // namespace attnd::kernels::bench
