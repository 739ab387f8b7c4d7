// Moving rows of q, k, v and o between memory and the layouts of the prefill tile, for one target.
//
// Packed operands consist of 32-bit units: a float, or a pair of BF16 elements that one dot
// instruction multiplies at once (Target::kPair elements). Included by the prefill_<target>.cc
// files only, each of which is compiled for its own Highway static target.
#pragma once

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/attention_params.h"
#include "kernels/cpu/prefill_block.h"

namespace attnd::kernels {

namespace hn = hwy::HWY_NAMESPACE;

template <class Target>
class PrefillRows {
 public:
  using Unit = std::uint32_t;
  static constexpr int kMaxRowUnits = kMaxHeadDim + 32;  // of a staged row, padded

  // Whether rows of `type` are read in place: their elements are already units' halves or wholes
  // and no row ends inside a group of units.
  static bool InPlace(DataType type, int head_dim) {
    return type == Target::kUnitType && head_dim % 8 == 0;
  }

  // Address of row `key` of k or v, given its base and stride.
  static HWY_INLINE const std::byte* Address(const KvAddress& kv, const std::byte* base,
                                             std::int64_t stride, std::int64_t key) {
    if (kv.page_table == nullptr) return base + key * stride;
    const std::int64_t page = std::int64_t{kv.page_table[key >> kv.page_shift]} * kPageUnitBytes;
    return base + page + (key & ((std::int64_t{1} << kv.page_shift) - 1)) * stride;
  }

  static HWY_INLINE void Prefetch(const std::byte* row, std::int64_t bytes) {
    for (std::int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(row + byte);
  }

  // Copies or widens one row of head_dim elements into `staged` and pads it with zeros: 32 bytes
  // at least, so that whole panels can be read from it.
  static void Stage(const std::byte* row, DataType type, int head_dim, Unit* staged) {
    if (type == Target::kUnitType) {
      const std::size_t bytes = static_cast<std::size_t>(head_dim) * ElementBytesOf(type);
      auto* out = reinterpret_cast<std::byte*>(staged);
      std::memcpy(out, row, bytes);
      std::memset(out + bytes, 0, kPadBytes);
      return;
    }
    auto* out = reinterpret_cast<float*>(staged);
    int dim = 0;
    for (; dim + kLanes <= head_dim; dim += kLanes) {
      hn::StoreU(Widen(row + std::size_t{2} * dim, type), kF32, out + dim);
    }
    if (dim < head_dim) {
      alignas(64) std::byte tail[2 * kLanes] = {};
      std::memcpy(tail, row + std::size_t{2} * dim, std::size_t{2} * (head_dim - dim));
      hn::StoreU(Widen(tail, type), kF32, out + dim);
      dim += kLanes;
    }
    std::memset(out + dim, 0, kPadBytes);
  }

  // out[unit * out_stride + i] = rows[i][unit] for i < 4 and units [0, num_units), rounded up to a
  // multiple of 4.
  static void Transpose4(const Unit* const* rows, int num_units, Unit* out,
                         std::int64_t out_stride) {
    constexpr hn::Full128<std::uint32_t> kBlock32;
    constexpr hn::Full128<std::uint64_t> kBlock64;
    for (int unit = 0; unit < num_units; unit += 4) {
      const auto a = hn::LoadU(kBlock32, rows[0] + unit);
      const auto b = hn::LoadU(kBlock32, rows[1] + unit);
      const auto c = hn::LoadU(kBlock32, rows[2] + unit);
      const auto d = hn::LoadU(kBlock32, rows[3] + unit);
      const auto ab_low = hn::BitCast(kBlock64, hn::InterleaveLower(kBlock32, a, b));
      const auto cd_low = hn::BitCast(kBlock64, hn::InterleaveLower(kBlock32, c, d));
      const auto ab_high = hn::BitCast(kBlock64, hn::InterleaveUpper(kBlock32, a, b));
      const auto cd_high = hn::BitCast(kBlock64, hn::InterleaveUpper(kBlock32, c, d));
      Unit* to = out + unit * out_stride;
      hn::StoreU(hn::BitCast(kBlock32, hn::InterleaveLower(kBlock64, ab_low, cd_low)), kBlock32,
                 to);
      hn::StoreU(hn::BitCast(kBlock32, hn::InterleaveUpper(kBlock64, ab_low, cd_low)), kBlock32,
                 to + out_stride);
      hn::StoreU(hn::BitCast(kBlock32, hn::InterleaveLower(kBlock64, ab_high, cd_high)), kBlock32,
                 to + 2 * out_stride);
      hn::StoreU(hn::BitCast(kBlock32, hn::InterleaveUpper(kBlock64, ab_high, cd_high)), kBlock32,
                 to + 3 * out_stride);
    }
  }

  // One row of o: head_dim values times `factor`, rounded to `type`. False: one of them is not
  // finite.
  static bool Store(const float* values, float factor, int head_dim, DataType type,
                    std::byte* out) {
    const auto factors = hn::Set(kF32, factor);
    const std::size_t element = ElementBytesOf(type);
    auto finite = hn::FirstN(kF32, kLanes);
    int dim = 0;
    for (; dim + kLanes <= head_dim; dim += kLanes) {
      const auto value = hn::Mul(hn::LoadU(kF32, values + dim), factors);
      finite = hn::And(finite, hn::IsFinite(value));
      Narrow(value, type, out + element * dim);
    }
    if (dim < head_dim) {
      const int rest = head_dim - dim;
      const auto value = hn::IfThenElseZero(hn::FirstN(kF32, rest),
                                            hn::Mul(hn::LoadU(kF32, values + dim), factors));
      finite = hn::And(finite, hn::IsFinite(value));
      alignas(64) std::byte tail[4 * kLanes];
      Narrow(value, type, tail);
      std::memcpy(out + element * dim, tail, element * rest);
    }
    return hn::AllTrue(kF32, finite);
  }

 private:
  static constexpr hn::ScalableTag<float> kF32{};
  static constexpr hn::Rebind<std::uint32_t, decltype(kF32)> kU32{};
  static constexpr hn::Rebind<std::int32_t, decltype(kF32)> kI32{};
  static constexpr hn::Rebind<std::uint16_t, decltype(kF32)> kU16{};
  static constexpr hn::Rebind<hwy::float16_t, decltype(kF32)> kF16{};
  static constexpr int kLanes = static_cast<int>(hn::MaxLanes(kF32));
  static constexpr std::size_t kPadBytes = 32;
  using F32 = hn::Vec<decltype(kF32)>;

  static constexpr std::size_t ElementBytesOf(DataType type) {
    return type == DataType::kFp32 ? 4 : 2;
  }

  static F32 Widen(const std::byte* values, DataType type) {
    if (type == DataType::kFp16) {
      return hn::PromoteTo(kF32, hn::LoadU(kF16, reinterpret_cast<const hwy::float16_t*>(values)));
    }
    const auto bits = hn::LoadU(kU16, reinterpret_cast<const std::uint16_t*>(values));
    return hn::BitCast(kF32, hn::ShiftLeft<16>(hn::PromoteTo(kU32, bits)));
  }

  static void Narrow(F32 value, DataType type, std::byte* out) {
    if (type == DataType::kFp32) {
      hn::StoreU(value, kF32, reinterpret_cast<float*>(out));
    } else if (type == DataType::kFp16) {
      hn::StoreU(hn::DemoteTo(kF16, value), kF16, reinterpret_cast<hwy::float16_t*>(out));
    } else {
      // Round to nearest even. A NaN may lose itself in the carry: its tile is computed again.
      const auto bits = hn::BitCast(kU32, value);
      const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(kU32, 1));
      const auto rounded = hn::Add(hn::Add(bits, hn::Set(kU32, 0x7FFF)), odd);
      const auto high = hn::BitCast(kI32, hn::ShiftRight<16>(rounded));
      hn::StoreU(hn::DemoteTo(kU16, high), kU16, reinterpret_cast<std::uint16_t*>(out));
    }
  }
};

}  // namespace attnd::kernels
