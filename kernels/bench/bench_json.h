// What the lines of every benchmark have in common.
#pragma once

#include <nlohmann/json.hpp>

#include "kernels/bench/bench_case.h"

namespace attnd::kernels::bench {

// In the order of writing, not of the alphabet.
using Json = nlohmann::ordered_json;

// Four significant digits.
double Rounded(double value);

// A line's `shape`.
Json ShapeJson(const BenchCase& shape);

}  // namespace attnd::kernels::bench
