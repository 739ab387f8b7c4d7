// Rotary position embedding of one row.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/attention_params.h"

namespace attnd::kernels {

// Sines and cosines of one position, amplitude included; pair i of the rotated dimensions uses
// entry i.
struct RopeAngles {
  std::array<float, kMaxHeadDim / 2> cosine;
  std::array<float, kMaxHeadDim / 2> sine;
};

// Angles are formed and reduced in double: in FP32 a position of 100,000 would be off by 0.006 rad.
void ComputeRopeAngles(const RopeParams& rope, std::int64_t position, RopeAngles& angles);

// Rotates the first rope.rotary_dim elements of `source` into `target` and copies the rest, rounded
// once to `type`. The two may be the same row.
void RotateRow(const RopeParams& rope, const RopeAngles& angles, DataType type, int head_dim,
               const void* source, void* target);

}  // namespace attnd::kernels
