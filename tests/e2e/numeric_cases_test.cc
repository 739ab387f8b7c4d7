// The faults that users met in attention kernels, asked of a server through gRPC: masks, windows,
// caps, ranges, head shapes, layouts, and the same again token by token on a cached sequence.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "client/attention_client.h"
#include "tests/support/local_server.h"
#include "tests/support/random_tensors.h"
#include "tests/support/served_problem.h"

namespace attnd::testing {
namespace {

using kernels::DataType;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::array kEveryType = {DataType::kFp32, DataType::kFp16, DataType::kBf16};

class NumericCasesTest : public ::testing::Test {
 protected:
  NumericCasesTest() : client_({.transport = {.target = server_.server->address()}}) {}

  // Attend with the fused and with the naive kernels.
  void ExpectRight(const ProblemShape& shape, const std::vector<ProblemSequence>& sequences) {
    EXPECT_EQ(CheckServed(client_, shape, sequences), "") << "fused";
    v1::ExecutionOptions naive;
    naive.set_algorithm(v1::ALGORITHM_NAIVE);
    EXPECT_EQ(CheckServed(client_, shape, sequences, naive), "") << "naive";
  }
  std::vector<float> AttendFloats(const client::AttendRequest& request) {
    const auto result = client_.Attend(request);
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return {};
    return *client::FloatsFromTensor(result->o);
  }

  LocalServer server_;
  client::AttentionClient client_;
};

ProblemSequence Causal(ProblemSequence sequence) {
  sequence.causal = true;
  return sequence;
}

TEST_F(NumericCasesTest, CausalMaskIsBottomRightAligned) {
  const ProblemShape fp32;
  ExpectRight(fp32, {Causal(SeededSequence(fp32, 5, 2, 2, 1))});
  ExpectRight(fp32, {Causal(SeededSequence(fp32, 130, 67, 2, 1))});
  const ProblemShape fp16{.type = DataType::kFp16};
  const ProblemSequence cached = Causal(SeededSequence(fp16, 2, 5, 3, 1));
  ExpectRight(fp16, {cached});
  const std::vector<float> o = AttendFloats(AttendRequestFor(fp16, {cached}));
  constexpr std::array<float, 4> kStarts = {-0.348499442F, -0.184905436F, -0.395516950F,
                                            0.059796774F};
  for (int dim = 0; dim < 4; ++dim) EXPECT_NEAR(o[dim], kStarts[dim], 1e-3);
}

TEST_F(NumericCasesTest, ChunksAndSingleTokensEqualOneShot) {
  const ProblemShape shape{.type = DataType::kFp16, .num_heads = 2, .num_kv_heads = 1};
  const ProblemSequence whole = Causal(SeededSequence(shape, 300, 300, 25, 2));
  ExpectRight(shape, {whole});
  EXPECT_EQ(CheckCached(client_, shape, whole, {300}), "");
  EXPECT_EQ(CheckCached(client_, shape, whole, {128, 128, 44}), "");
  EXPECT_EQ(CheckCached(client_, shape, whole, {1, 299}), "");
  EXPECT_EQ(CheckCached(client_, shape, whole, std::vector<int>(300, 1)), "");
}

TEST_F(NumericCasesTest, WindowOfFourShowsFiveKeys) {
  const ProblemShape shape{.head_dim = 16};
  ProblemSequence sequence = Causal(SeededSequence(shape, 16, 16, 1, 1));
  sequence.window_left = 4;
  sequence.k.assign(sequence.k.size(), 0.0F);
  for (std::size_t i = 0; i < sequence.v.size(); ++i) sequence.v[i] = static_cast<float>(i / 16);
  const std::vector<float> o = AttendFloats(AttendRequestFor(shape, {sequence}));
  for (int row = 0; row < 16; ++row) {
    const float first = row > 4 ? static_cast<float>(row - 4) : 0.0F;
    EXPECT_NEAR(o[row * 16], (first + static_cast<float>(row)) / 2, 1e-5) << "row " << row;
  }
  EXPECT_EQ(CheckCached(client_, shape, sequence, std::vector<int>(16, 1)), "");
  EXPECT_EQ(CheckCached(client_, shape, sequence, {5, 11}), "");
}

TEST_F(NumericCasesTest, TwoSidedWindowFollowsTheDiagonal) {
  const ProblemShape shape{.type = DataType::kFp16};
  ProblemSequence sequence = SeededSequence(shape, 129, 32, 8, 2);
  sequence.window_left = 32;
  sequence.window_right = 64;
  ExpectRight(shape, {sequence});
}

TEST_F(NumericCasesTest, WindowHoldsOnSingleTokenSteps) {
  const ProblemShape shape;
  ProblemSequence sequence = Causal(SeededSequence(shape, 12, 12, 10, 2));
  sequence.window_left = 7;
  ExpectRight(shape, {sequence});
  EXPECT_EQ(CheckCached(client_, shape, sequence, std::vector<int>(12, 1)), "");
}

TEST_F(NumericCasesTest, WindowHoldsLongAfterItsPagesWereFreed) {
  const ProblemShape shape{.type = DataType::kBf16, .num_heads = 4, .num_kv_heads = 2};
  ProblemSequence sequence = Causal(SeededSequence(shape, 900, 900, 11, 1));
  sequence.window_left = 40;
  EXPECT_EQ(CheckCached(client_, shape, sequence, {500, 200, 100, 50, 49, 1}), "");
}

TEST_F(NumericCasesTest, CapAndWindowHoldTogether) {
  const ProblemShape shape{.type = DataType::kBf16, .num_heads = 4, .num_kv_heads = 2};
  ProblemSequence sequence = Causal(SeededSequence(shape, 96, 96, 9, 4));
  for (float& v : sequence.v) v = std::min(1.0F, std::max(-1.0F, v));
  sequence.window_left = 16;
  sequence.soft_cap = 5;
  ExpectRight(shape, {sequence});
  EXPECT_EQ(CheckCached(client_, shape, sequence, {64, 31, 1}), "");
}

TEST_F(NumericCasesTest, EveryOptionHoldsOnCachedSequences) {
  for (const DataType type : kEveryType) {
    const ProblemShape shape{.type = type, .num_heads = 6, .num_kv_heads = 2, .head_dim = 72};
    ProblemSequence sequence = Causal(SeededSequence(shape, 80, 80, 14, 2));
    sequence.window_left = 30;
    sequence.soft_cap = 8;
    sequence.scale = 0.2F;
    sequence.alibi_slopes = {0.5F, 0.25F, 0.125F, 0.1F, 0.05F, 0.01F};
    sequence.sink_logits = {1.0F, -2.0F, 0.0F, 3.0F, -kInfinity, 0.5F};
    ExpectRight(shape, {sequence});
    EXPECT_EQ(CheckCached(client_, shape, sequence, {50, 20, 4, 3, 1, 1, 1}), "") << TypeName(type);
  }
}

TEST_F(NumericCasesTest, BiasIsAddedAndMinusInfinityHides) {
  const ProblemShape shape{.num_heads = 2, .num_kv_heads = 2, .head_dim = 8};
  ProblemSequence sequence = SeededSequence(shape, 8, 8, 1, 1);
  sequence.bias.assign(64, -kInfinity);
  for (int row = 0; row < 4; ++row) {
    for (int key = 0; key < 4; ++key) sequence.bias[row * 8 + key] = 0.25F * key;
  }
  ExpectRight(shape, {sequence});  // rows 4 to 7 see nothing
  sequence.bias = RandomValues(77, 2 * 64, 3);
  ExpectRight(shape, {sequence});  // one bias a head
}

TEST_F(NumericCasesTest, LogitsBelowAnySentinelStillCount) {
  for (const DataType type : {DataType::kFp32, DataType::kBf16}) {
    for (const float level : {-1e5F, -6e5F, -1e8F, -1e30F}) {
      const ProblemShape shape{.type = type, .num_heads = 16, .head_dim = 128};
      ProblemSequence sequence{.query_length = 1, .kv_length = 64};
      sequence.q.assign(16 * 128, 1.0F);
      sequence.k.assign(64 * 128, level / 128);
      for (int dim = 0; dim < 128; ++dim) sequence.k[dim] = 0.875F * level / 128;
      sequence.v = RandomValues(13003, 64 * 128, 1);
      ExpectRight(shape, {sequence});
    }
  }
}

TEST_F(NumericCasesTest, ScoresBeyondHalfPrecisionStayFinite) {
  const ProblemShape shape{.type = DataType::kFp16, .head_dim = 128};
  ProblemSequence sequence{.query_length = 4, .kv_length = 80};
  sequence.q = RandomValues(14001, 512, 500);
  sequence.k = RandomValues(14002, 10240, 350);
  sequence.v = RandomValues(14003, 10240, 1);
  ExpectRight(shape, {sequence});
  const std::vector<float> o = AttendFloats(AttendRequestFor(shape, {sequence}));
  EXPECT_EQ(o[0], -0.700195312F);
  EXPECT_EQ(o[2], 0.816894531F);
}

TEST_F(NumericCasesTest, ScaleMayBeZeroOrNegativeButNotInfinite) {
  const ProblemShape mean{.head_dim = 16};
  ProblemSequence zero = SeededSequence(mean, 1, 77, 5, 1);
  zero.scale = 0.0F;
  for (std::size_t i = 0; i < zero.v.size(); ++i) zero.v[i] = static_cast<float>(i / 16);
  EXPECT_NEAR(AttendFloats(AttendRequestFor(mean, {zero}))[0], 38.0F, 1e-4);
  const ProblemShape shape{.type = DataType::kFp16, .num_heads = 2, .num_kv_heads = 1};
  ProblemSequence negative = SeededSequence(shape, 8, 200, 17, 10);
  negative.scale = -0.125F;
  ExpectRight(shape, {negative});
  for (const float scale : {kNan, kInfinity, -kInfinity}) {
    client::AttendRequest request = AttendRequestFor(mean, {zero});
    request.options.set_softmax_scale(scale);
    const auto result = client_.Attend(request);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(result.status().message().find("softmax_scale"), std::string::npos);
  }
}

TEST_F(NumericCasesTest, CapMustBeFiniteAndNotNegative) {
  const ProblemShape shape{.head_dim = 16};
  for (const float cap : {-1.0F, kNan, kInfinity}) {
    client::AttendRequest request = AttendRequestFor(shape, {SeededSequence(shape, 2, 3, 1, 1)});
    request.options.set_logits_soft_cap(cap);
    EXPECT_EQ(client_.Attend(request).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(NumericCasesTest, PrefixAndSuffixPartsMergeToTheWhole) {
  const ProblemShape shape{.type = DataType::kFp16, .num_heads = 2, .num_kv_heads = 1};
  const ProblemSequence whole = Causal(SeededSequence(shape, 4, 3136, 24, 2));
  ExpectRight(shape, {whole});
  std::vector<client::PartialState> parts;
  for (const auto& [begin, length] : {std::pair{0, 3072}, std::pair{3072, 64}}) {
    ProblemShape part_shape = shape;
    part_shape.partial = true;
    ProblemSequence part = whole;
    part.kv_length = length;
    part.k = {whole.k.begin() + begin * 64, whole.k.begin() + (begin + length) * 64};
    part.v = {whole.v.begin() + begin * 64, whole.v.begin() + (begin + length) * 64};
    part.query_position = 3132;
    client::AttendRequest request = AttendRequestFor(part_shape, {part});
    request.key_positions = {begin};
    const auto result = client_.Attend(request);
    ASSERT_TRUE(result.ok()) << result.status();
    parts.push_back({result->o, result->lse});
  }
  const auto merged = client::MergeStates(parts, {}, v1::DATA_TYPE_FP16);
  ASSERT_TRUE(merged.ok()) << merged.status();
  AttentionProblem problem(shape, {whole});
  EXPECT_EQ(CheckOutput(problem, 0, SplitAnswer(shape, {whole}, merged->o, merged->lse)[0]), "");
}

TEST_F(NumericCasesTest, LseIsTheNaturalLogarithm) {
  const ProblemShape shape;
  ProblemSequence sequence = SeededSequence(shape, 1, 3136, 6, 1);
  sequence.k.assign(sequence.k.size(), 0.0F);
  const auto result = client_.Attend(AttendRequestFor(shape, {sequence}));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_NEAR((*client::FloatsFromTensor(result->lse))[0], std::log(3136.0), 1e-5);
}

TEST_F(NumericCasesTest, HiddenNonFiniteValuesReachNoVisibleRow) {
  const ProblemShape shape{.num_heads = 2, .num_kv_heads = 2, .head_dim = 32};
  const ProblemSequence clean = Causal(SeededSequence(shape, 12, 12, 33, 1));
  const std::vector<float> expected = AttendFloats(AttendRequestFor(shape, {clean}));
  for (const float garbage : {kNan, kInfinity}) {
    ProblemSequence dirty = clean;
    for (int i = 8 * 64; i < 9 * 64; ++i) dirty.k[i] = dirty.v[i] = garbage;
    const std::vector<float> o = AttendFloats(AttendRequestFor(shape, {dirty}));
    ASSERT_EQ(o.size(), expected.size());
    // A tile with a non-finite output is computed again on the exact row: rounding only.
    for (int i = 0; i < 8 * 64; ++i) EXPECT_NEAR(o[i], expected[i], 0x1p-22) << "element " << i;
    for (std::size_t i = 8 * 64; i < o.size(); ++i) EXPECT_FALSE(std::isfinite(o[i]));
  }
}

TEST_F(NumericCasesTest, HiddenNonFiniteValuesLeaveTheBitsOfOtherSequences) {
  const ProblemShape shape{.num_heads = 2, .num_kv_heads = 2, .head_dim = 32};
  const ProblemSequence clean = Causal(SeededSequence(shape, 12, 12, 33, 1));
  const ProblemSequence other = Causal(SeededSequence(shape, 40, 40, 34, 1));
  const std::vector<float> expected = AttendFloats(AttendRequestFor(shape, {clean, other, clean}));
  for (const float garbage : {kNan, kInfinity}) {
    ProblemSequence dirty = clean;
    for (int i = 8 * 64; i < 9 * 64; ++i) dirty.k[i] = dirty.v[i] = garbage;
    const std::vector<float> o = AttendFloats(AttendRequestFor(shape, {dirty, other, clean}));
    ASSERT_EQ(o.size(), expected.size());
    for (std::size_t i = 12 * 64; i < o.size(); ++i) ASSERT_EQ(o[i], expected[i]) << i;
  }
}

TEST_F(NumericCasesTest, EveryHeadRatioPrefillsAndDecodes) {
  for (const auto& [heads, kv_heads] : {std::pair{5, 1}, std::pair{40, 8}, std::pair{24, 4},
                                        std::pair{28, 4}, std::pair{64, 4}, std::pair{33, 3}}) {
    const ProblemShape shape{
        .type = DataType::kBf16, .num_heads = heads, .num_kv_heads = kv_heads, .head_dim = 128};
    EXPECT_EQ(CheckServed(client_, shape, {SeededSequence(shape, 1, 257, 11, 2)}), "") << heads;
    const ProblemSequence cached = Causal(SeededSequence(shape, 40, 40, 11, 2));
    EXPECT_EQ(CheckCached(client_, shape, cached, {37, 2, 1}), "") << heads << "/" << kv_heads;
  }
}

TEST_F(NumericCasesTest, HeadDimsBetweenBucketsKeepTheirScale) {
  for (const int head_dim : {1, 40, 72, 80, 96, 120, 256}) {
    const ProblemShape shape{
        .type = DataType::kFp16, .num_heads = 2, .num_kv_heads = 2, .head_dim = head_dim};
    ExpectRight(shape, {Causal(SeededSequence(shape, 33, 65, 12, 2))});
    const ProblemSequence cached = Causal(SeededSequence(shape, 35, 35, 12, 2));
    EXPECT_EQ(CheckCached(client_, shape, cached, {33, 1, 1}), "") << head_dim;
  }
}

TEST_F(NumericCasesTest, HeadsThatDoNotDivideAreRefusedEverywhere) {
  for (const auto& [heads, kv_heads] : {std::pair{33, 2}, std::pair{3, 2}, std::pair{2, 4}}) {
    const ProblemShape shape{.num_heads = heads, .num_kv_heads = kv_heads, .head_dim = 32};
    const std::int64_t before = server_.backend.batches();
    ProblemSequence sequence{.query_length = 8, .kv_length = 8};
    sequence.q = RandomValues(1, 8 * heads * 32, 1);
    sequence.k = sequence.v = RandomValues(2, 8 * kv_heads * 32, 1);
    EXPECT_EQ(client_.Attend(AttendRequestFor(shape, {sequence})).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(client_.CreateSequence(SequenceRequestFor(shape, sequence)).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(server_.backend.batches(), before);
  }
}

TEST_F(NumericCasesTest, ZeroHeadsAndZeroDimsAreRefused) {
  for (int zero = 0; zero < 4; ++zero) {
    const ProblemShape shape{.num_heads = zero == 0 || zero == 3 ? 0 : 2,
                             .num_kv_heads = zero == 1 || zero == 3 ? 0 : 2,
                             .head_dim = zero == 2 || zero == 3 ? 0 : 16};
    client::AttendRequest request;
    request.q = WireTensor(shape.type, 2, shape.num_heads, shape.head_dim,
                           std::vector<float>(2 * shape.num_heads * shape.head_dim));
    request.k = request.v = WireTensor(shape.type, 2, shape.num_kv_heads, shape.head_dim,
                                       std::vector<float>(2 * shape.num_kv_heads * shape.head_dim));
    EXPECT_EQ(client_.Attend(request).status().code(), absl::StatusCode::kInvalidArgument) << zero;
    EXPECT_EQ(client_.CreateSequence(SequenceRequestFor(shape, {})).status().code(),
              absl::StatusCode::kInvalidArgument)
        << zero;
  }
}

TEST_F(NumericCasesTest, RaggedBatchesWithEmptyMembersGiveEachItsOwnAnswer) {
  const ProblemShape shape{.type = DataType::kBf16, .num_heads = 9, .num_kv_heads = 3};
  using Lengths = std::vector<std::pair<int, int>>;
  for (const Lengths& lengths :
       {Lengths{{0, 0}, {1, 3}, {0, 0}, {1, 5}}, Lengths{{0, 0}, {0, 0}, {0, 0}, {1, 1}},
        Lengths{{0, 0}, {1, 3}, {0, 0}, {2, 5}}, Lengths{{2, 0}, {1, 3}}}) {
    std::vector<ProblemSequence> sequences;
    for (const auto& [query_length, kv_length] : lengths) {
      sequences.push_back(
          Causal(SeededSequence(shape, query_length, kv_length, sequences.size() + 50, 1)));
    }
    ExpectRight(shape, sequences);
  }
}

TEST_F(NumericCasesTest, EqualTokensAndHeadsAreNotConfused) {
  const ProblemShape shape{
      .type = DataType::kBf16, .num_heads = 16, .num_kv_heads = 16, .head_dim = 128};
  ExpectRight(shape, {SeededSequence(shape, 16, 16, 30, 1)});
  ExpectRight(shape, {SeededSequence(shape, 62, 62, 30, 1)});
}

TEST_F(NumericCasesTest, TensorTooLargeForAMessageIsRefusedCleanly) {
  // 1600 x 16 x 729 x 72 in FP16: 2.7 GB, over every limit.
  client::AttendRequest request;
  request.q.data_type = v1::DATA_TYPE_FP16;
  request.q.shape = {std::int64_t{1600} * 729, 16, 72};
  request.q.size_bytes = std::int64_t{1600} * 729 * 16 * 72 * 2;
  request.q.data = std::shared_ptr<const std::byte>(reinterpret_cast<const std::byte*>(this),
                                                    [](const std::byte*) {});
  request.k = request.v = request.q;
  EXPECT_EQ(client_.Attend(request).status().code(), absl::StatusCode::kResourceExhausted);
  const ProblemShape shape;
  ExpectRight(shape, {SeededSequence(shape, 3, 3, 1, 1)});  // the connection still works
}

}  // namespace
}  // namespace attnd::testing
