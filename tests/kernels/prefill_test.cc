// Fused prefill on every SIMD target of this machine against float64.
#include "kernels/cpu/prefill.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/prefill_case.h"

namespace attnd::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<CpuTarget> Targets(DataType type) {
  std::vector<CpuTarget> targets;
  for (const CpuTarget target : {CpuTarget::kAvx2, CpuTarget::kAvx512, CpuTarget::kAvx512Bf16}) {
    if (target == CpuTarget::kAvx512Bf16 && type != DataType::kBf16) continue;
    if (CpuTargetSupported(target)) targets.push_back(target);
  }
  return targets;
}

constexpr DataType kTypes[] = {DataType::kFp32, DataType::kFp16, DataType::kBf16};

// Error of the sums' order and of exp2 in FP32 (measured: 1.2e-6); what rounding to a 16-bit type
// adds is measured beside it, on the plain pipeline.
constexpr double kFp32Floor = 3e-6;
// 2^-22 of the magnitude of lse for its own rounding, and the bound of exp2's polynomial.
constexpr double kLseFloor = 2e-5;

void ExpectRight(PrefillCase& test, const CaseSpec& spec, std::int64_t reruns = 0) {
  std::vector<HeadError> plain;
  for (int i = 0; i < test.params().num_sequences; ++i) plain.push_back(test.WorstHead(i, true));
  for (const CpuTarget target : Targets(spec.type)) {
    for (const int num_threads : {1, 2}) {
      SCOPED_TRACE(std::string(CpuTargetName(target)) + ", type " +
                   std::to_string(static_cast<int>(spec.type)) + ", threads " +
                   std::to_string(num_threads) + ", head_dim " + std::to_string(spec.head_dim));
      const LaunchResult result = test.Run(target, num_threads);
      ASSERT_EQ(result.status, LaunchStatus::kOk);
      if (reruns == 0) {
        EXPECT_EQ(result.exact_reruns, 0);
      } else {
        EXPECT_GE(result.exact_reruns, reruns);
      }
      for (int i = 0; i < test.params().num_sequences; ++i) {
        const HeadError got = test.WorstHead(i, false);
        EXPECT_LE(got.relative_l2, 2 * plain[i].relative_l2 + kFp32Floor) << "sequence " << i;
        EXPECT_LE(got.lse, 2 * plain[i].lse + kLseFloor) << "sequence " << i;
      }
    }
  }
}

void ExpectRight(const CaseSpec& spec) {
  PrefillCase test(spec);
  ExpectRight(test, spec);
}

CaseSpec Spec(DataType type, int num_heads, int num_kv_heads, int head_dim,
              std::vector<SequenceSpec> sequences) {
  CaseSpec spec;
  spec.type = type;
  spec.num_heads = num_heads;
  spec.num_kv_heads = num_kv_heads;
  spec.head_dim = head_dim;
  spec.sequences = std::move(sequences);
  return spec;
}

SequenceSpec Lengths(int query_length, int kv_length, bool causal = true) {
  SequenceSpec sequence;
  sequence.query_length = query_length;
  sequence.kv_length = kv_length;
  sequence.causal = causal;
  return sequence;
}

TEST(PrefillTest, ServesEveryHeadDim) {
  for (const DataType type : kTypes) {
    for (const int head_dim : {1, 2, 3, 7, 8, 17, 40, 64, 72, 80, 96, 120, 127, 128, 255, 256}) {
      ExpectRight(Spec(type, 2, 1, head_dim, {Lengths(33, 65)}));
    }
  }
}

TEST(PrefillTest, ServesLengthsAroundTheTile) {
  for (const DataType type : kTypes) {
    for (const int query_length : {1, 15, 16, 17, 47, 48, 49, 97}) {
      for (const int kv_length : {1, 7, 8, 9, 127, 128, 129, 257}) {
        ExpectRight(
            Spec(type, 1, 1, 32,
                 {Lengths(query_length, kv_length), Lengths(query_length, kv_length, false)}));
      }
    }
  }
}

TEST(PrefillTest, ServesEveryGroupRatio) {
  for (const DataType type : kTypes) {
    for (const auto& [heads, kv_heads] :
         {std::pair{5, 1}, {28, 4}, {33, 3}, {6, 2}, {16, 1}, {4, 4}}) {
      ExpectRight(Spec(type, heads, kv_heads, 24, {Lengths(13, 150), Lengths(1, 9)}));
    }
  }
}

TEST(PrefillTest, ReadsPagesAndNothingElse) {
  for (const DataType type : kTypes) {
    for (const int page_tokens : {1, 4, 16, 256}) {
      for (const int head_dim : {40, 64}) {
        CaseSpec spec = Spec(type, 4, 2, head_dim, {Lengths(50, 131), Lengths(7, 300)});
        spec.page_tokens = page_tokens;
        ExpectRight(spec);
      }
    }
  }
}

TEST(PrefillTest, RowsWithoutKeysAreZero) {
  for (const DataType type : kTypes) {
    // More queries than keys, no keys at all, a window that ends before the first key.
    SequenceSpec before = Lengths(20, 30, false);
    before.query_position = -40;
    before.window_right = 5;
    SequenceSpec after = Lengths(90, 30, false);
    after.query_position = 10;
    after.window_left = 8;
    ExpectRight(Spec(type, 2, 1, 64, {Lengths(130, 67), Lengths(3, 0), before, after}));
  }
}

TEST(PrefillTest, WindowsFollowPositions) {
  for (const DataType type : kTypes) {
    for (const int window : {0, 1, 7, 16, 100, 128, 1000}) {
      SequenceSpec left = Lengths(140, 300);
      left.window_left = window;
      SequenceSpec both = Lengths(129, 32, false);
      both.window_left = window;
      both.window_right = 64;
      SequenceSpec shifted = Lengths(60, 260, false);
      shifted.key_position = 37;
      shifted.query_position = 180;
      shifted.window_left = window;
      shifted.window_right = 3;
      ExpectRight(Spec(type, 1, 1, 48, {left, both, shifted}));
    }
  }
}

TEST(PrefillTest, AppliesEveryScoreOption) {
  for (const DataType type : kTypes) {
    for (int bits = 0; bits < 16; ++bits) {
      SequenceSpec sequence = Lengths(52, 140);
      sequence.soft_cap = (bits & 1) != 0 ? 5.0F : 0.0F;
      sequence.alibi = (bits & 2) != 0;
      sequence.sinks = (bits & 4) != 0;
      sequence.bias = (bits & 8) != 0;
      SequenceSpec plain = Lengths(10, 20, false);
      CaseSpec spec = Spec(type, 4, 2, 64, {sequence, plain});
      spec.amplitude = 4;
      spec.partial = bits % 5 == 4;  // with and without each option
      ExpectRight(spec);
    }
  }
}

TEST(PrefillTest, AcceptsAnyFiniteScale) {
  for (const DataType type : kTypes) {
    for (const float scale : {0.0F, -0.125F, 1.0F, -3.0F, 1e-30F}) {
      SequenceSpec sequence = Lengths(60, 200, false);
      sequence.scale = scale;
      SequenceSpec capped = sequence;
      capped.soft_cap = 3;
      CaseSpec spec = Spec(type, 2, 1, 64, {sequence, capped});
      spec.amplitude = 3;
      ExpectRight(spec);
    }
  }
}

TEST(PrefillTest, LargeNegativeLogitsKeepTheirWeights) {
  for (const DataType type : {DataType::kFp32, DataType::kBf16}) {
    for (const float level : {-1e5F, -6e5F, -1e8F, -1e30F}) {
      const CaseSpec spec = Spec(type, 16, 1, 128, {Lengths(1, 64)});
      PrefillCase test(spec);
      for (int dim = 0; dim < 128; ++dim) {
        for (int head = 0; head < 16; ++head) test.SetQ(0, 0, head, dim, 1);
        for (int key = 0; key < 64; ++key) {
          test.SetK(0, key, 0, dim, level / 128 * (key == 0 ? 0.875F : 1.0F));
        }
      }
      for (const CpuTarget target : Targets(type)) {
        ASSERT_EQ(test.Run(target, 1).status, LaunchStatus::kOk);
        for (int head = 0; head < 16; ++head) {
          const std::vector<double>& expected = test.Oracle(0, 0, head);
          for (int dim = 0; dim < 128; ++dim) {
            // p * v / p in FP32: two roundings.
            const double slack = type == DataType::kFp32 ? std::abs(expected[dim]) * 0x1p-22 : 0;
            EXPECT_NEAR(test.O(0, 0, head, dim), expected[dim], slack)
                << CpuTargetName(target) << ", level " << level;
          }
          EXPECT_NEAR(test.Lse(0, 0, head) / expected.back(), 1, 1e-5);
        }
      }
    }
  }
}

TEST(PrefillTest, FirstTilesFullyMaskedDoNotFixTheMaximum) {
  for (const DataType type : kTypes) {
    const CaseSpec spec = Spec(type, 14, 2, 64, {Lengths(88, 448)});
    PrefillCase test(spec);
    for (int dim = 0; dim < 64; ++dim) {
      for (int head = 0; head < 14; ++head) {
        for (int token = 0; token < 88; ++token) test.SetQ(0, token, head, dim, 1);
      }
      for (int head = 0; head < 2; ++head) {
        for (int key = 0; key < 448; ++key) {
          test.SetK(0, key, head, dim, -16.0F + 0.01F * static_cast<float>((key * 7 + dim) % 50));
        }
      }
    }
    ExpectRight(test, spec);
  }
}

// NaN and infinity in slots that no row, or only later rows, may see.
TEST(PrefillTest, HiddenGarbageNeverLeaks) {
  for (const DataType type : kTypes) {
    for (const float garbage : {kNan, kInfinity, -kInfinity}) {
      const CaseSpec spec = Spec(type, 2, 1, 32, {Lengths(12, 12), Lengths(100, 300)});
      PrefillCase clean(spec);
      PrefillCase dirty(spec);
      for (int dim = 0; dim < 32; ++dim) {
        dirty.SetK(0, 8, 0, dim, garbage);
        dirty.SetV(0, 8, 0, dim, garbage);
      }
      for (const CpuTarget target : Targets(type)) {
        ASSERT_EQ(clean.Run(target, 2).exact_reruns, 0);
        const LaunchResult result = dirty.Run(target, 2);
        EXPECT_GE(result.exact_reruns, 2);
        for (int head = 0; head < 2; ++head) {
          for (int dim = 0; dim < 32; ++dim) {
            for (int token = 0; token < 8; ++token) {
              const double expected = clean.Oracle(0, token, head)[dim];
              const double step = type == DataType::kFp32 ? 1e-6 : 1e-2;
              EXPECT_NEAR(dirty.O(0, token, head, dim), expected, step);
            }
            for (int token = 0; token < 100; ++token) {
              EXPECT_EQ(dirty.O(1, token, head, dim), clean.O(1, token, head, dim));
            }
          }
          for (int token = 8; token < 12; ++token) {
            EXPECT_FALSE(std::isfinite(dirty.O(0, token, head, 0)) && std::isnan(garbage));
          }
        }
      }
    }
  }
}

TEST(PrefillTest, MinusInfinityBiasHidesAKey) {
  for (const DataType type : kTypes) {
    SequenceSpec sequence = Lengths(20, 200, false);
    sequence.bias = true;
    const CaseSpec spec = Spec(type, 2, 2, 64, {sequence});
    PrefillCase test(spec);
    for (int head = 0; head < 2; ++head) {
      for (int key = 0; key < 200; ++key) {
        test.SetBias(0, head, 3, key, -kInfinity);
        if (key % 3 != 0) test.SetBias(0, head, 5, key, -kInfinity);
        if (key < 130) test.SetBias(0, head, 7, key, -kInfinity);
      }
    }
    ExpectRight(test, spec);
    EXPECT_EQ(test.Lse(0, 3, 1), -kInfinity);
    EXPECT_EQ(test.O(0, 3, 1, 10), 0.0F);
  }
}

TEST(PrefillTest, NanInAVisibleInputReachesItsRows) {
  for (const DataType type : kTypes) {
    const CaseSpec spec = Spec(type, 1, 1, 64, {Lengths(60, 60)});
    PrefillCase test(spec);
    test.SetQ(0, 17, 0, 5, kNan);
    ExpectRight(test, spec, 1);
    EXPECT_TRUE(std::isnan(test.O(0, 17, 0, 0)));
    EXPECT_TRUE(std::isnan(test.Lse(0, 17, 0)));
  }
}

// A row's bits do not depend on the rows computed with it.
TEST(PrefillTest, ChunksGiveTheBitsOfTheWhole) {
  for (const DataType type : kTypes) {
    const CaseSpec whole_spec = Spec(type, 2, 1, 64, {Lengths(300, 300)});
    PrefillCase whole(whole_spec);
    for (const CpuTarget target : Targets(type)) {
      ASSERT_EQ(whole.Run(target, 1).status, LaunchStatus::kOk);
      for (const auto& [begin, end] :
           {std::pair{0, 128}, {128, 256}, {256, 300}, {1, 300}, {77, 78}}) {
        CaseSpec spec = Spec(type, 2, 1, 64, {Lengths(end - begin, end)});
        spec.page_tokens = 16;
        PrefillCase chunk(spec);
        for (int dim = 0; dim < 64; ++dim) {
          for (int token = begin; token < end; ++token) {
            for (int head = 0; head < 2; ++head) {
              chunk.SetQ(0, token - begin, head, dim, whole.Value(0, 'q', token, head, dim));
            }
          }
          for (int key = 0; key < end; ++key) {
            chunk.SetK(0, key, 0, dim, whole.Value(0, 'k', key, 0, dim));
            chunk.SetV(0, key, 0, dim, whole.Value(0, 'v', key, 0, dim));
          }
        }
        ASSERT_EQ(chunk.Run(target, 1).status, LaunchStatus::kOk);
        for (int token = begin; token < end; ++token) {
          for (int head = 0; head < 2; ++head) {
            ASSERT_EQ(chunk.Lse(0, token - begin, head), whole.Lse(0, token, head));
            for (int dim = 0; dim < 64; ++dim) {
              ASSERT_EQ(chunk.O(0, token - begin, head, dim), whole.O(0, token, head, dim))
                  << CpuTargetName(target) << " rows " << begin << " to " << end << ", row "
                  << token << ", head " << head << ", dim " << dim;
            }
          }
        }
      }
    }
  }
}

TEST(PrefillTest, WorkspaceDoesNotGrowWithLength) {
  const CaseSpec small = Spec(DataType::kFp32, 8, 8, 128, {Lengths(1, 1)});
  const CaseSpec large = Spec(DataType::kFp32, 8, 8, 128, {Lengths(500, 500)});
  const PrefillCase a(small);
  const PrefillCase b(large);
  for (const CpuTarget target : Targets(DataType::kBf16)) {
    EXPECT_EQ(PrefillWorkspaceBytes(a.params(), target, 2),
              PrefillWorkspaceBytes(b.params(), target, 2));
    EXPECT_LT(PrefillWorkspaceBytes(b.params(), target, 2), std::int64_t{8} << 20);
  }
}

}  // namespace
}  // namespace attnd::kernels
