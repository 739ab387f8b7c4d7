#include "kernels/cpu/rope.h"

#include <cmath>
#include <cstring>

#include "kernels/attention_kernels.h"
#include "kernels/cpu/element.h"

namespace attnd::kernels {
namespace {

// theta^(-2i / rotary_dim) of the last layer kind that this thread rotated: the powers cost more
// than the sines, and a thread sees the same few layer kinds over and over.
struct FrequencyCache {
  double theta = 0;
  int rotary_dim = 0;
  std::array<double, kMaxHeadDim / 2> inverse_frequencies;
};

const double* InverseFrequencies(const RopeParams& rope) {
  thread_local FrequencyCache cache;
  if (cache.theta != rope.theta || cache.rotary_dim != rope.rotary_dim) {
    for (int i = 0; i < rope.rotary_dim / 2; ++i) {
      cache.inverse_frequencies[i] = std::pow(rope.theta, -2.0 * i / rope.rotary_dim);
    }
    cache.theta = rope.theta;
    cache.rotary_dim = rope.rotary_dim;
  }
  return cache.inverse_frequencies.data();
}

template <class Element>
void RotateElements(const RopeParams& rope, const RopeAngles& angles, int head_dim,
                    const Element* source, Element* target) {
  const int pairs = rope.rotary_dim / 2;
  const int step = rope.interleaved ? 2 : 1;         // from one pair to the next
  const int partner = rope.interleaved ? 1 : pairs;  // from a pair's first member to its second
  for (int i = 0; i < pairs; ++i) {
    const double first = ToFloat(source[i * step]);
    const double second = ToFloat(source[i * step + partner]);
    const double cosine = angles.cosine[i];
    const double sine = angles.sine[i];
    FromFloat(static_cast<float>(first * cosine - second * sine), target[i * step]);
    FromFloat(static_cast<float>(second * cosine + first * sine), target[i * step + partner]);
  }
  if (source != target && head_dim > rope.rotary_dim) {
    std::memcpy(target + rope.rotary_dim, source + rope.rotary_dim,
                (head_dim - rope.rotary_dim) * sizeof(Element));
  }
}

}  // namespace

void ComputeRopeAngles(const RopeParams& rope, std::int64_t position, RopeAngles& angles) {
  const double scaled_position = static_cast<double>(position) * rope.position_scale;
  const double* powers = rope.inverse_frequencies == nullptr ? InverseFrequencies(rope) : nullptr;
  for (int i = 0; i < rope.rotary_dim / 2; ++i) {
    const double frequency = powers != nullptr ? powers[i] : double{rope.inverse_frequencies[i]};
    const double angle = scaled_position * frequency;
    angles.cosine[i] = static_cast<float>(std::cos(angle) * rope.amplitude);
    angles.sine[i] = static_cast<float>(std::sin(angle) * rope.amplitude);
  }
}

void RotateRow(const RopeParams& rope, const RopeAngles& angles, DataType type, int head_dim,
               const void* source, void* target) {
  switch (type) {
    case DataType::kFp32:
      RotateElements(rope, angles, head_dim, static_cast<const float*>(source),
                     static_cast<float*>(target));
      return;
    case DataType::kFp16:
      RotateElements(rope, angles, head_dim, static_cast<const Fp16*>(source),
                     static_cast<Fp16*>(target));
      return;
    case DataType::kBf16:
      RotateElements(rope, angles, head_dim, static_cast<const Bf16*>(source),
                     static_cast<Bf16*>(target));
      return;
    default:
      return;
  }
}

void RotateQueries(void* q, DataType type, std::int64_t num_tokens, int num_heads, int head_dim,
                   std::int64_t first_position, const RopeParams& rope) {
  if (!rope.enabled) return;
  const std::int64_t row_bytes = std::int64_t{head_dim} * ElementBytes(type);
  auto* row = static_cast<std::byte*>(q);
  RopeAngles angles;
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    ComputeRopeAngles(rope, first_position + token, angles);
    for (int head = 0; head < num_heads; ++head, row += row_bytes) {
      RotateRow(rope, angles, type, head_dim, row, row);
    }
  }
}

}  // namespace attnd::kernels
