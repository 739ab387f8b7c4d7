// Append, rotation and merge on a card against the same operations of the CPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/element.h"
#include "kernels/cuda_kernels.h"
#include "tests/support/random_tensors.h"

namespace attnd::kernels {
namespace {

constexpr DataType kTypes[] = {DataType::kFp32, DataType::kFp16, DataType::kBf16};

// Host values with a copy on the device.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values) : count_(values.size()) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, count_ * sizeof(T) + 1), cudaSuccess);
    data_ = static_cast<T*>(memory);
    EXPECT_EQ(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  ~OnDevice() { cudaFree(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  T* data() const { return data_; }
  std::vector<T> Read() const {
    std::vector<T> values(count_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }

 private:
  std::size_t count_;
  T* data_ = nullptr;
};

std::vector<std::byte> Stored(const std::vector<float>& values, DataType type) {
  std::vector<std::byte> bytes(values.size() * ElementBytes(type));
  for (std::size_t i = 0; i < values.size(); ++i) {
    StoreElement(bytes.data(), type, static_cast<std::int64_t>(i), values[i]);
  }
  return bytes;
}

double Roundoff(DataType type) {
  if (type == DataType::kFp32) return 0x1p-24;
  return type == DataType::kFp16 ? 0x1p-11 : 0x1p-8;
}

// The pool after the same append on the CPU and on the card.
struct Pools {
  std::vector<std::byte> cpu, cuda;
  LaunchStatus cpu_status = LaunchStatus::kOk;
  CudaLaunchStatus status{};
};

Pools AppendBoth(const PageLayout& layout, int num_pages, std::vector<std::uint32_t> table,
                 int num_tokens, std::int64_t first_token, const RopeParams& rope) {
  Pools pools;
  pools.cpu.assign(static_cast<std::size_t>(num_pages * layout.page_bytes()), std::byte{0xFF});
  const OnDevice<std::byte> pool(pools.cpu);
  const std::int64_t count = std::int64_t{num_tokens} * layout.num_kv_heads * layout.head_dim;
  const std::vector<std::byte> k = Stored(RandomValues(1, count, 1), layout.data_type);
  const std::vector<std::byte> v = Stored(RandomValues(2, count, 1), layout.data_type);
  const OnDevice<std::byte> device_k(k);
  const OnDevice<std::byte> device_v(v);
  const OnDevice<std::uint32_t> device_table(table);
  AppendSequence append{k.data(),     v.data(), num_tokens, first_token, 1000000 + first_token,
                        table.data(), rope};
  CpuExecutor executor(2);
  AppendParams params{&append, 1, layout, pools.cpu.data(),
                      static_cast<std::int64_t>(pools.cpu.size())};
  pools.cpu_status = LaunchAppend(params, executor).status;
  append.k = device_k.data();
  append.v = device_v.data();
  append.page_table = device_table.data();
  const OnDevice<AppendSequence> sequences(std::vector{append});
  const OnDevice<CudaLaunchStatus> status(std::vector<CudaLaunchStatus>(1));
  params.pool = pool.data();
  EXPECT_EQ(LaunchCudaAppend(params, sequences.data(), status.data(), nullptr), LaunchStatus::kOk);
  pools.status = status.Read()[0];
  pools.cuda = pool.Read();
  return pools;
}

std::vector<std::uint32_t> Descending(const PageLayout& layout, int num_pages) {
  std::vector<std::uint32_t> table;
  for (int page = num_pages - 1; page >= 0; --page) {
    table.push_back(static_cast<std::uint32_t>(page * layout.page_bytes() / kPageUnitBytes));
  }
  return table;
}

TEST(CudaCacheUpdateTest, AppendWritesWhatTheCpuWrites) {
  for (const DataType type : kTypes) {
    for (const int page_tokens : {1, 16, 64}) {
      const PageLayout layout{type, page_tokens, 3, 72, PaddedHeadDim(72)};
      const int pages = 260 / page_tokens + 1;
      const Pools pools = AppendBoth(layout, pages, Descending(layout, pages), 201, 13, {});
      EXPECT_EQ(pools.cpu_status, LaunchStatus::kOk);
      EXPECT_EQ(pools.status.faults, 0U);
      EXPECT_EQ(pools.cpu, pools.cuda) << "page of " << page_tokens;
    }
  }
}

TEST(CudaCacheUpdateTest, RotatedRowsAgreeWithTheCpu) {
  for (const DataType type : kTypes) {
    for (const bool interleaved : {false, true}) {
      RopeParams rope;
      rope.enabled = true;
      rope.rotary_dim = 48;
      rope.interleaved = interleaved;
      rope.position_scale = 0.5;
      rope.amplitude = 1.25;
      const PageLayout layout{type, 16, 2, 64, 64};
      const Pools pools = AppendBoth(layout, 10, Descending(layout, 10), 100, 5, rope);
      const auto elements = static_cast<std::int64_t>(pools.cpu.size()) / ElementBytes(type);
      for (std::int64_t i = 0; i < elements; ++i) {
        const float cpu = LoadElement(pools.cpu.data(), type, i);
        const float cuda = LoadElement(pools.cuda.data(), type, i);
        ASSERT_EQ(std::isnan(cpu), std::isnan(cuda)) << i;
        // One unit of the type, and of FP32 for a product that is fused on one side.
        if (!std::isnan(cpu)) {
          ASSERT_NEAR(cpu, cuda, 2 * Roundoff(type) * std::fabs(cpu) + 0x1p-22) << i;
        }
      }
    }
  }
}

TEST(CudaCacheUpdateTest, APageOutsideThePoolIsReportedAndNothingIsWrittenThere) {
  const PageLayout layout{DataType::kBf16, 16, 2, 64, 64};
  std::vector<std::uint32_t> table = Descending(layout, 4);
  table[2] = static_cast<std::uint32_t>(4 * layout.page_bytes() / kPageUnitBytes);
  const Pools pools = AppendBoth(layout, 4, table, 60, 0, {});
  EXPECT_EQ(pools.cpu_status, LaunchStatus::kPageOutOfPool);
  EXPECT_EQ(pools.status.faults, kCudaPageOutOfPool);
}

TEST(CudaCacheUpdateTest, MoreTokensThanAGridDimensionHolds) {
  const PageLayout layout{DataType::kFp16, 256, 1, 8, PaddedHeadDim(8)};
  const Pools pools = AppendBoth(layout, 280, Descending(layout, 280), 70000, 3, {});
  EXPECT_EQ(pools.cpu, pools.cuda);
}

// Sequences of different lengths, positions and options, in one launch: the first, the last and
// those of one token are where a search for a row's sequence goes wrong.
TEST(CudaCacheUpdateTest, RotatedQueriesAgreeWithTheCpu) {
  constexpr int kHeads = 6;
  constexpr int kDim = 64;
  for (const DataType type : kTypes) {
    const OnDevice<float> frequencies(RandomValues(8, kDim / 2, 1));
    const std::vector<float> host_frequencies = frequencies.Read();
    std::vector<QueryRotation> rotations;
    std::int32_t rows = 0;
    for (const std::int32_t num_tokens : {1, 9, 1, 1, 300, 0, 2, 64, 1}) {
      RopeParams rope;
      rope.enabled = true;
      rope.rotary_dim = rotations.size() % 3 == 1 ? kDim / 2 : kDim;
      rope.interleaved = rotations.size() % 2 == 1;
      rope.amplitude = 1 + 0.125 * static_cast<double>(rotations.size());
      if (rotations.size() % 4 == 2) rope.inverse_frequencies = host_frequencies.data();
      const auto first_position = 123456 * static_cast<std::int64_t>(rotations.size());
      rotations.push_back({nullptr, num_tokens, rows, first_position, rope});
      rows += num_tokens;
    }
    std::vector<std::byte> q = Stored(RandomValues(7, rows * kHeads * kDim, 1), type);
    const OnDevice<std::byte> device_q(q);
    const auto row_bytes = static_cast<std::int64_t>(kHeads) * kDim * ElementBytes(type);
    for (QueryRotation& rotation : rotations) {
      RotateQueries(q.data() + rotation.first_row * row_bytes, type, rotation.num_tokens, kHeads,
                    kDim, rotation.first_position, rotation.rope);
      rotation.q = device_q.data() + rotation.first_row * row_bytes;
      if (rotation.rope.inverse_frequencies != nullptr) {
        rotation.rope.inverse_frequencies = frequencies.data();
      }
    }
    const OnDevice<QueryRotation> device_rotations(rotations);
    ASSERT_EQ(
        LaunchCudaRotateQueries(rotations, device_rotations.data(), type, kHeads, kDim, nullptr),
        LaunchStatus::kOk);
    const std::vector<std::byte> rotated = device_q.Read();
    for (std::int64_t i = 0; i < std::int64_t{rows} * kHeads * kDim; ++i) {
      const float expected = LoadElement(q.data(), type, i);
      ASSERT_NEAR(LoadElement(rotated.data(), type, i), expected,
                  2 * Roundoff(type) * std::fabs(expected) + 0x1p-22)
          << "type " << static_cast<int>(type) << ", row " << i / (kHeads * kDim);
    }
  }
}

TEST(CudaCacheUpdateTest, NoQueriesToRotateIsNoLaunch) {
  EXPECT_EQ(LaunchCudaRotateQueries({}, nullptr, DataType::kBf16, 6, 64, nullptr),
            LaunchStatus::kOk);
}

TEST(CudaCacheUpdateTest, MergedStatesAgreeWithTheCpu) {
  constexpr float kEmpty = -std::numeric_limits<float>::infinity();
  constexpr int kRows = 37;
  constexpr int kDim = 80;
  std::vector<std::vector<float>> o, lse;
  for (int part = 0; part < 3; ++part) {
    o.push_back(RandomValues(20 + part, kRows * kDim, 1));
    lse.push_back(RandomValues(30 + part, kRows, 20));
    lse[part][5] = kEmpty;                 // a row that no part saw
    if (part == 1) lse[part][6] = kEmpty;  // one that a part did not see,
    for (int d = 0; part == 1 && d < kDim; ++d) {
      o[part][6 * kDim + d] = std::numeric_limits<float>::quiet_NaN();  // whose o may be anything
    }
  }
  const std::vector<float> sinks = RandomValues(40, kRows, 3);
  const OnDevice<float> o0(o[0]), o1(o[1]), o2(o[2]), l0(lse[0]), l1(lse[1]), l2(lse[2]);
  const OnDevice<float> device_sinks(sinks);
  const OnDevice<const float*> o_parts(std::vector<const float*>{o0.data(), o1.data(), o2.data()});
  const OnDevice<const float*> lse_parts(
      std::vector<const float*>{l0.data(), l1.data(), l2.data()});
  const float* host_o[] = {o[0].data(), o[1].data(), o[2].data()};
  const float* host_lse[] = {lse[0].data(), lse[1].data(), lse[2].data()};
  for (const bool with_sinks : {false, true}) {
    std::vector<float> expected(kRows * kDim), expected_lse(kRows);
    MergeStates({host_o, host_lse, 3, kRows, kDim, with_sinks ? sinks.data() : nullptr,
                 DataType::kFp32, expected.data(), expected_lse.data()});
    const OnDevice<float> merged(expected), merged_lse(expected_lse);
    ASSERT_EQ(cudaMemset(merged.data(), 0xFF, kRows * kDim * 4), cudaSuccess);
    ASSERT_EQ(cudaMemset(merged_lse.data(), 0xFF, kRows * 4), cudaSuccess);
    ASSERT_EQ(LaunchCudaMergeStates({o_parts.data(), lse_parts.data(), 3, kRows, kDim,
                                     with_sinks ? device_sinks.data() : nullptr, DataType::kFp32,
                                     merged.data(), merged_lse.data()},
                                    nullptr),
              LaunchStatus::kOk);
    const std::vector<float> got = merged.Read();
    const std::vector<float> got_lse = merged_lse.Read();
    // |lse| up to 20: its rounding moves a weight by 20 x 2^-24, ex2 by 2 units more.
    for (int i = 0; i < kRows * kDim; ++i) ASSERT_NEAR(got[i], expected[i], 1e-5) << i;
    for (int i = 0; i < kRows; ++i) {
      if (std::isinf(expected_lse[i])) {
        ASSERT_EQ(got_lse[i], expected_lse[i]);
      } else {
        ASSERT_NEAR(got_lse[i], expected_lse[i], 1e-5);
      }
    }
  }
}

}  // namespace
}  // namespace attnd::kernels
