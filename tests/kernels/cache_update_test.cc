// Append, rotary embedding, merge of partial states, element conversion, the executor.
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/attention_kernels.h"
#include "kernels/cpu/cpu_executor.h"
#include "kernels/cpu/element.h"
#include "tests/support/random_tensors.h"

namespace attnd::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A pool of `num_pages` pages in which page i of the table is page num_pages - 1 - i of the pool.
struct Cache {
  Cache(const PageLayout& page_layout, int num_pages)
      : layout(page_layout), pool(num_pages * page_layout.page_bytes(), std::byte{0xFF}) {
    for (int page = num_pages - 1; page >= 0; --page) {
      table.push_back(static_cast<std::uint32_t>(page * layout.page_bytes() / kPageUnitBytes));
    }
  }
  float At(std::int64_t token, int head, int dim, bool value) const {
    const std::int64_t offset = std::int64_t{table[token / layout.page_tokens]} * kPageUnitBytes +
                                (value ? layout.v_offset_bytes() : 0) +
                                head * layout.head_block_bytes();
    return LoadElement(pool.data() + offset, layout.data_type,
                       token % layout.page_tokens * layout.padded_head_dim + dim);
  }
  AppendParams Params(const AppendSequence* sequences, int count) {
    return {sequences, count, layout, pool.data(), static_cast<std::int64_t>(pool.size())};
  }
  PageLayout layout;
  std::vector<std::byte> pool;
  std::vector<std::uint32_t> table;
};

TEST(CacheUpdateTest, AppendWritesRowsPadsThemAndTouchesNothingElse) {
  CpuExecutor executor(2);
  for (const int num_tokens : {1, 5, 90}) {  // inline, and over threads
    Cache cache({DataType::kFp32, 8, 2, 20, 32}, 15);
    const std::vector<float> k = RandomValues(1, std::int64_t{num_tokens} * 40, 1);
    const std::vector<float> v = RandomValues(2, std::int64_t{num_tokens} * 40, 1);
    AppendSequence append{k.data(), v.data(), num_tokens, 13, 0, cache.table.data(), {}};
    ASSERT_EQ(LaunchAppend(cache.Params(&append, 1), executor).status, LaunchStatus::kOk);
    for (int token = 0; token < 120; ++token) {
      const bool written = token >= 13 && token < 13 + num_tokens;
      for (int head = 0; head < 2; ++head) {
        for (int dim = 0; dim < 32; ++dim) {
          for (const bool value : {false, true}) {
            const float got = cache.At(token, head, dim, value);
            if (!written) {
              ASSERT_TRUE(std::isnan(got));
            } else if (dim >= 20) {
              ASSERT_EQ(got, 0);
            } else {
              ASSERT_EQ(got, (value ? v : k)[((token - 13) * 2 + head) * 20 + dim]);
            }
          }
        }
      }
    }
  }
}

TEST(CacheUpdateTest, AppendServesSeveralSequences) {
  CpuExecutor executor(2);
  Cache cache({DataType::kBf16, 4, 1, 32, 32}, 40);
  std::vector<float> values(40 * 32);
  std::vector<std::uint16_t> rows(values.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    StoreElement(rows.data(), DataType::kBf16, static_cast<std::int64_t>(i),
                 static_cast<float>(i / 32));
  }
  std::vector<AppendSequence> appends;
  for (int i = 0; i < 4; ++i) {
    appends.push_back({rows.data(), rows.data(), 40, 0, 0, cache.table.data() + i * 10, {}});
  }
  ASSERT_EQ(LaunchAppend(cache.Params(appends.data(), 4), executor).status, LaunchStatus::kOk);
  for (int token = 0; token < 160; ++token) {
    EXPECT_EQ(cache.At(token, 0, 31, true), static_cast<float>(token % 40));
  }
}

TEST(CacheUpdateTest, AppendRefusesAPageOutsideThePoolAndWritesNothing) {
  CpuExecutor executor(1);
  Cache cache({DataType::kFp32, 8, 2, 32, 32}, 3);
  const std::vector<std::byte> before = cache.pool;
  const std::vector<float> rows(20 * 64, 1.0F);
  cache.table[2] = static_cast<std::uint32_t>(3 * cache.layout.page_bytes() / kPageUnitBytes);
  AppendSequence append{rows.data(), rows.data(), 20, 0, 0, cache.table.data(), {}};
  EXPECT_EQ(LaunchAppend(cache.Params(&append, 1), executor).status, LaunchStatus::kPageOutOfPool);
  EXPECT_EQ(cache.pool, before);
  append.num_tokens = 16;  // the bad page is not needed
  EXPECT_EQ(LaunchAppend(cache.Params(&append, 1), executor).status, LaunchStatus::kOk);
}

// q . k after rotation, in double.
double RotatedDot(const std::vector<float>& q, std::int64_t q_position, const std::vector<float>& k,
                  std::int64_t k_position, const RopeParams& rope) {
  std::vector<float> rotated_q = q;
  std::vector<float> rotated_k = k;
  const int head_dim = static_cast<int>(q.size());
  RotateQueries(rotated_q.data(), DataType::kFp32, 1, 1, head_dim, q_position, rope);
  RotateQueries(rotated_k.data(), DataType::kFp32, 1, 1, head_dim, k_position, rope);
  double dot = 0;
  for (int i = 0; i < head_dim; ++i) dot += double{rotated_q[i]} * double{rotated_k[i]};
  return dot;
}

TEST(CacheUpdateTest, RotationDependsOnDistanceOnlyEvenFarOut) {
  const std::vector<float> q = RandomValues(5, 64, 1);
  const std::vector<float> k = RandomValues(6, 64, 1);
  for (const bool interleaved : {false, true}) {
    const RopeParams rope{.enabled = true, .rotary_dim = 64, .interleaved = interleaved};
    const double near = RotatedDot(q, 7, k, 0, rope);
    // FP32 angles would be off by 0.06 rad at a million.
    EXPECT_NEAR(RotatedDot(q, 1000007, k, 1000000, rope), near, 1e-5);
    EXPECT_GT(std::fabs(RotatedDot(q, 8, k, 0, rope) - near), 1e-3);
  }
}

TEST(CacheUpdateTest, RotationFollowsItsDefinition) {
  const std::vector<float> source = RandomValues(7, 12, 1);
  const float inverse_frequencies[] = {0.5F, 0.25F};
  for (const bool interleaved : {false, true}) {
    RopeParams rope{.enabled = true,
                    .rotary_dim = 4,
                    .interleaved = interleaved,
                    .position_scale = 0.5,
                    .amplitude = 2,
                    .inverse_frequencies = inverse_frequencies};
    std::vector<float> rotated = source;
    RotateQueries(rotated.data(), DataType::kFp32, 1, 2, 6, 3, rope);
    for (int head = 0; head < 2; ++head) {
      for (int pair = 0; pair < 2; ++pair) {
        const int first = head * 6 + (interleaved ? 2 * pair : pair);
        const int second = interleaved ? first + 1 : first + 2;
        const double angle = 3 * 0.5 * double{inverse_frequencies[pair]};
        EXPECT_NEAR(rotated[first],
                    2 * (source[first] * std::cos(angle) - source[second] * std::sin(angle)), 1e-6);
        EXPECT_NEAR(rotated[second],
                    2 * (source[second] * std::cos(angle) + source[first] * std::sin(angle)), 1e-6);
      }
      EXPECT_EQ(rotated[head * 6 + 4], source[head * 6 + 4]);  // beyond rotary_dim
      EXPECT_EQ(rotated[head * 6 + 5], source[head * 6 + 5]);
    }
  }
}

TEST(CacheUpdateTest, ThetaGivesTheFrequencies) {
  std::vector<float> by_theta = RandomValues(8, 8, 1);
  std::vector<float> by_list = by_theta;
  float frequencies[4];
  for (int i = 0; i < 4; ++i) {
    frequencies[i] = static_cast<float>(std::pow(500000.0, -2.0 * i / 8));
  }
  RopeParams rope{.enabled = true, .theta = 500000.0, .rotary_dim = 8};
  RotateQueries(by_theta.data(), DataType::kFp32, 1, 1, 8, 11, rope);
  rope.inverse_frequencies = frequencies;
  RotateQueries(by_list.data(), DataType::kFp32, 1, 1, 8, 11, rope);
  for (int i = 0; i < 8; ++i) EXPECT_NEAR(by_theta[i], by_list[i], 1e-6);
}

TEST(CacheUpdateTest, AppendRotatesKeysAndLeavesValues) {
  CpuExecutor executor(1);
  for (const DataType type : {DataType::kFp32, DataType::kFp16, DataType::kBf16}) {
    Cache cache({type, 16, 1, 32, 32}, 2);
    std::vector<std::byte> k(20 * 32 * ElementBytes(type));
    const std::vector<float> values = RandomValues(9, 20 * 32, 1);
    for (int i = 0; i < 20 * 32; ++i) StoreElement(k.data(), type, i, values[i]);
    AppendSequence append{k.data(), k.data(), 20, 0, 1000, cache.table.data(), {}};
    append.rope = {.enabled = true, .rotary_dim = 16};
    ASSERT_EQ(LaunchAppend(cache.Params(&append, 1), executor).status, LaunchStatus::kOk);
    std::vector<std::byte> rotated = k;
    RotateQueries(rotated.data(), type, 20, 1, 32, 1000, append.rope);
    for (int i = 0; i < 20 * 32; ++i) {
      ASSERT_EQ(cache.At(i / 32, 0, i % 32, false), LoadElement(rotated.data(), type, i));
      ASSERT_EQ(cache.At(i / 32, 0, i % 32, true), LoadElement(k.data(), type, i));
    }
  }
}

struct MergeCase {
  std::vector<std::vector<float>> o, lse;
  std::vector<float> Merge(const float* sinks, std::vector<float>* merged_lse) const {
    std::vector<const float*> o_parts, lse_parts;
    for (const auto& part : o) o_parts.push_back(part.data());
    for (const auto& part : lse) lse_parts.push_back(part.data());
    const auto rows = static_cast<std::int64_t>(lse[0].size());
    const int head_dim = static_cast<int>(o[0].size()) / static_cast<int>(rows);
    std::vector<float> merged(o[0].size(), kNan);
    merged_lse->assign(rows, kNan);
    MergeStates({o_parts.data(), lse_parts.data(), static_cast<int>(o.size()), rows, head_dim,
                 sinks, DataType::kFp32, merged.data(), merged_lse->data()});
    return merged;
  }
};

TEST(CacheUpdateTest, MergeWeighsByLse) {
  const MergeCase merge{{{1, 2}, {3, 6}}, {{std::log(1.0F)}, {std::log(3.0F)}}};
  std::vector<float> lse;
  const std::vector<float> o = merge.Merge(nullptr, &lse);
  EXPECT_FLOAT_EQ(o[0], (1 + 3 * 3) / 4.0F);
  EXPECT_FLOAT_EQ(o[1], (2 + 3 * 6) / 4.0F);
  EXPECT_FLOAT_EQ(lse[0], std::log(4.0F));
}

TEST(CacheUpdateTest, EmptyPartsCountForNothingWhateverTheyHold) {
  const MergeCase merge{{{kNan}, {5}}, {{-kInfinity}, {2}}};
  std::vector<float> lse;
  EXPECT_EQ(merge.Merge(nullptr, &lse)[0], 5);
  EXPECT_EQ(lse[0], 2);
  const MergeCase empty{{{kNan}, {7}}, {{-kInfinity}, {-kInfinity}}};
  EXPECT_EQ(empty.Merge(nullptr, &lse)[0], 0);
  EXPECT_EQ(lse[0], -kInfinity);
}

TEST(CacheUpdateTest, SinkJoinsTheDenominatorOnce) {
  const MergeCase merge{{{4}, {4}}, {{0}, {0}}};
  const float sink = std::log(2.0F);
  std::vector<float> lse;
  EXPECT_FLOAT_EQ(merge.Merge(&sink, &lse)[0], 2);
  EXPECT_FLOAT_EQ(lse[0], std::log(4.0F));
  const MergeCase empty{{{4}}, {{-kInfinity}}};
  EXPECT_EQ(empty.Merge(&sink, &lse)[0], 0);
  EXPECT_FLOAT_EQ(lse[0], sink);
}

TEST(CacheUpdateTest, NanInANonEmptyPartPropagates) {
  std::vector<float> lse;
  EXPECT_TRUE(std::isnan(MergeCase{{{kNan}, {1}}, {{0}, {0}}}.Merge(nullptr, &lse)[0]));
  EXPECT_TRUE(std::isnan(MergeCase{{{1}, {1}}, {{kNan}, {0}}}.Merge(nullptr, &lse)[0]));
  EXPECT_TRUE(std::isnan(lse[0]));
}

TEST(CacheUpdateTest, MergeSurvivesFarApartLse) {
  std::vector<float> lse;
  const MergeCase merge{{{1}, {2}}, {{-30000}, {30000}}};
  EXPECT_EQ(merge.Merge(nullptr, &lse)[0], 2);
  EXPECT_EQ(lse[0], 30000);
}

TEST(CacheUpdateTest, EveryHalfPrecisionNumberRoundTrips) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Fp16 half{static_cast<std::uint16_t>(bits)};
    const Bf16 brain{static_cast<std::uint16_t>(bits)};
    Fp16 half_back{};
    Bf16 brain_back{};
    FromFloat(ToFloat(half), half_back);
    FromFloat(ToFloat(brain), brain_back);
    if (std::isnan(ToFloat(half))) {
      ASSERT_TRUE(std::isnan(ToFloat(half_back)));
    } else {
      ASSERT_EQ(half_back.bits, half.bits);
    }
    if (std::isnan(ToFloat(brain))) {
      ASSERT_TRUE(std::isnan(ToFloat(brain_back)));
    } else {
      ASSERT_EQ(brain_back.bits, brain.bits);
    }
  }
}

TEST(CacheUpdateTest, ConversionRoundsToNearestEven) {
  const auto half = [](float value) {
    Fp16 out{};
    FromFloat(value, out);
    return out.bits;
  };
  const auto brain = [](float value) {
    Bf16 out{};
    FromFloat(value, out);
    return out.bits;
  };
  EXPECT_EQ(half(1 + 0x1p-11F), 0x3C00);  // a tie goes to the even neighbour
  EXPECT_EQ(half(1 + 3 * 0x1p-11F), 0x3C02);
  EXPECT_EQ(half(1 + 0x1p-11F + 0x1p-20F), 0x3C01);
  EXPECT_EQ(half(65519.0F), 0x7BFF);
  EXPECT_EQ(half(65520.0F), 0x7C00);
  EXPECT_EQ(half(0x1p-24F), 0x0001);
  EXPECT_EQ(half(0x1p-25F), 0x0000);
  EXPECT_EQ(half(-3 * 0x1p-25F), 0x8002);
  EXPECT_EQ(brain(1 + 0x1p-8F), 0x3F80);
  EXPECT_EQ(brain(1 + 3 * 0x1p-8F), 0x3F82);
  EXPECT_EQ(brain(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_TRUE(std::isnan(ToFloat(Bf16{brain(std::bit_cast<float>(0x7F800001U))})));
}

TEST(CacheUpdateTest, ParallelForRunsEveryItemOnceAndNeverSharesAWorker) {
  for (const int num_threads : {1, 2, 4}) {
    CpuExecutor executor(num_threads);
    for (const int items : {0, 1, 3, 1000}) {
      std::vector<std::atomic<int>> runs(items);
      std::vector<std::atomic<int>> busy(num_threads);
      std::atomic<bool> shared{false};
      ParallelFor(executor, items, [&](std::int64_t item, int worker) {
        if (busy[worker].fetch_add(1) != 0) shared = true;
        runs[item].fetch_add(1);
        busy[worker].fetch_sub(1);
      });
      for (const auto& run : runs) EXPECT_EQ(run.load(), 1);
      EXPECT_FALSE(shared.load());
    }
  }
}

TEST(CacheUpdateTest, CeilingsAreMeasured) {
  CpuExecutor executor(1);
  const CpuCeilings ceilings = MeasureCpuCeilings(CpuTarget::kAuto, executor, 0.01);
  EXPECT_GT(ceilings.fp32_flops_per_second, 1e8);
  EXPECT_GT(ceilings.read_bytes_per_second, 1e7);
  EXPECT_EQ(ceilings.bf16_flops_per_second > 0, BestCpuTarget() == CpuTarget::kAvx512Bf16);
}

}  // namespace
}  // namespace attnd::kernels
