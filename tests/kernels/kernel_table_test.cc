// The support matrix: lookup, required features, launch checks.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "kernels/attention_kernels.h"

namespace attnd::kernels {
namespace {

constexpr DataType kTypes[] = {DataType::kFp32, DataType::kFp16, DataType::kBf16};

KernelKey Key(Operation operation, DataType type) {
  return {operation, type, type, 128, kFeatureCausal | kFeaturePaged | kFeatureLse};
}

TEST(KernelTableTest, NamesAreUniqueAndFound) {
  std::set<std::string> names;
  for (const KernelRow& row : KernelTable()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_EQ(FindKernelByName(row.name), &row);
  }
  EXPECT_EQ(FindKernelByName("cpu/none"), nullptr);
}

TEST(KernelTableTest, EveryOperationServesEveryType) {
  for (const Operation operation :
       {Operation::kPrefill, Operation::kDecode, Operation::kNaive, Operation::kExact}) {
    for (const DataType type : kTypes) {
      const KernelRow* row = FindKernel(Key(operation, type), {});
      ASSERT_NE(row, nullptr);
      EXPECT_EQ(row->operation == operation || BestCpuTarget() == CpuTarget::kScalar, true);
      EXPECT_NE(row->data_types & TypeBit(type), 0U);
      EXPECT_NE(row->launch, nullptr);
    }
  }
  EXPECT_NE(
      FindKernel({Operation::kAppend, DataType::kBf16, DataType::kBf16, 128, kFeatureRope}, {}),
      nullptr);
  EXPECT_NE(FindKernel({Operation::kMergeStates, DataType::kBf16, DataType::kBf16, 128, 0}, {}),
            nullptr);
}

TEST(KernelTableTest, UnknownPairsTypesAndDevicesHaveNoRow) {
  KernelKey key = Key(Operation::kDecode, DataType::kBf16);
  key.kv_data_type = DataType::kInt8;
  EXPECT_EQ(FindKernel(key, {}), nullptr);
  key.kv_data_type = DataType::kFp16;
  EXPECT_EQ(FindKernel(key, {}), nullptr);
  EXPECT_EQ(FindKernel(Key(Operation::kDecode, DataType::kFp8E4m3), {}), nullptr);
  EXPECT_EQ(FindKernel(Key(Operation::kDecode, DataType::kBf16), {.kind = DeviceKind::kCuda}),
            nullptr);
  key = Key(Operation::kDecode, DataType::kBf16);
  key.features = kFeatureRope;  // decode never rotates
  EXPECT_EQ(FindKernel(key, {}), nullptr);
}

TEST(KernelTableTest, AForcedTargetBoundsTheRow) {
  for (const CpuTarget target :
       {CpuTarget::kScalar, CpuTarget::kAvx2, CpuTarget::kAvx512, CpuTarget::kAvx512Bf16}) {
    for (const Operation operation : {Operation::kPrefill, Operation::kDecode}) {
      const KernelRow* row =
          FindKernel(Key(operation, DataType::kBf16), {.cpu_target = target, .num_threads = 2});
      ASSERT_NE(row, nullptr);
      EXPECT_LE(row->cpu_target, target) << row->name;
      EXPECT_TRUE(CpuTargetSupported(row->cpu_target)) << row->name;
      if (CpuTargetSupported(target)) {
        EXPECT_EQ(row->cpu_target, target) << row->name;
      }
      if (target == CpuTarget::kScalar) {
        EXPECT_EQ(row->operation, Operation::kExact);
      }
    }
  }
}

TEST(KernelTableTest, TheBestTargetIsTheFastest) {
  EXPECT_EQ(FindKernel(Key(Operation::kPrefill, DataType::kBf16), {})->cpu_target, BestCpuTarget());
  std::ifstream info("/proc/cpuinfo");
  const std::string text(std::istreambuf_iterator<char>(info), {});
  if (text.find("GenuineIntel") != std::string::npos) {  // slow BF16 dot products
    EXPECT_LE(BestCpuTarget(), CpuTarget::kAvx512);
    EXPECT_EQ(BestCpuTarget() == CpuTarget::kAvx512, CpuTargetSupported(CpuTarget::kAvx512));
  } else {
    EXPECT_EQ(BestCpuTarget() == CpuTarget::kAvx512Bf16,
              CpuTargetSupported(CpuTarget::kAvx512Bf16));
  }
}

TEST(KernelTableTest, TargetNamesRoundTrip) {
  for (const CpuTarget target : {CpuTarget::kAuto, CpuTarget::kScalar, CpuTarget::kAvx2,
                                 CpuTarget::kAvx512, CpuTarget::kAvx512Bf16}) {
    CpuTarget parsed = CpuTarget::kAuto;
    EXPECT_TRUE(ParseCpuTarget(CpuTargetName(target), parsed));
    EXPECT_EQ(parsed, target);
  }
  CpuTarget parsed = CpuTarget::kAvx2;
  EXPECT_FALSE(ParseCpuTarget("avx1024", parsed));
  EXPECT_EQ(parsed, CpuTarget::kAvx2);
  EXPECT_TRUE(CpuTargetSupported(BestCpuTarget()));
  EXPECT_TRUE(CpuTargetSupported(CpuTarget::kScalar));
}

TEST(KernelTableTest, RequiredFeaturesAreThoseThatAnySequenceUses) {
  const float numbers[2] = {};
  float lse = 0;
  const std::uint32_t entry = 0;
  AttentionSequence sequences[2];
  AttentionParams params;
  params.sequences = sequences;
  params.num_sequences = 2;
  EXPECT_EQ(RequiredFeatures(params), 0U);
  sequences[1].causal = true;
  sequences[1].window_right = 3;  // ignored when causal
  EXPECT_EQ(RequiredFeatures(params), kFeatureCausal);
  sequences[0].window_right = 3;
  EXPECT_EQ(RequiredFeatures(params), kFeatureCausal | kFeatureWindow);
  sequences[0] = {};
  sequences[1] = {};
  sequences[0].window_left = 0;
  sequences[0].logits_soft_cap = 2;
  sequences[1].alibi_slopes = sequences[1].sink_logits = sequences[1].bias = numbers;
  sequences[1].lse = &lse;
  sequences[1].kv.page_table = &entry;
  EXPECT_EQ(RequiredFeatures(params), kFeatureWindow | kFeatureSoftCap | kFeatureAlibi |
                                          kFeatureSinks | kFeatureBias | kFeatureLse |
                                          kFeaturePaged);
  params.partial = true;  // leaves sinks out
  EXPECT_EQ(RequiredFeatures(params) & (kFeatureSinks | kFeaturePartial), kFeaturePartial);
}

TEST(KernelTableTest, LaunchRefusesWhatTheRowDoesNotOffer) {
  CpuExecutor executor(2);
  AttentionParams params;
  LaunchPlan plan;
  EXPECT_EQ(Launch(plan, params, nullptr, executor).status, LaunchStatus::kUnsupported);
  plan = PlanAttention(*FindKernelByName("cpu/exact"), params, {.num_threads = 2}, {});
  EXPECT_EQ(Launch(plan, params, nullptr, executor).status, LaunchStatus::kOk);
  params.head_dim = kMaxHeadDim + 1;
  EXPECT_EQ(Launch(plan, params, nullptr, executor).status, LaunchStatus::kUnsupported);
  params.head_dim = 64;
  params.kv_data_type = DataType::kInt8;
  EXPECT_EQ(Launch(plan, params, nullptr, executor).status, LaunchStatus::kUnsupported);
  params.kv_data_type = params.data_type;
  plan.num_threads = 1;  // scratch for fewer threads than the executor has
  EXPECT_EQ(Launch(plan, params, nullptr, executor).status, LaunchStatus::kUnsupported);
  plan.row = FindKernelByName("cpu/append");  // called through LaunchAppend
  EXPECT_EQ(Launch(plan, params, nullptr, executor).status, LaunchStatus::kUnsupported);
}

}  // namespace
}  // namespace attnd::kernels
