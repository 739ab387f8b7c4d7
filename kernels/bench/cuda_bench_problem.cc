#include "kernels/bench/cuda_bench_problem.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>

#include "kernels/cpu/element.h"

namespace attnd::kernels::bench {
namespace {

constexpr double kBeyondL2 = 400e6;  // bytes; several times the largest L2
constexpr int kSampleRows = 4;

// Uniform values of variance 1, as normalised activations have; a prime number of them, so that
// repetitions do not line up with rows.
const std::vector<std::byte>& RandomBlock(DataType type) {
  static const auto make = [](DataType of) {
    constexpr std::int64_t kElements = 8388593;
    std::vector<std::byte> block(static_cast<std::size_t>(kElements * ElementBytes(of)));
    std::uint64_t state = 0x9E3779B97F4A7C15U;
    for (std::int64_t i = 0; i < kElements; ++i) {
      state ^= state << 13U;
      state ^= state >> 7U;
      state ^= state << 17U;
      const auto unit = static_cast<float>(state >> 40U) * 0x1p-24F;
      StoreElement(block.data(), of, i, (2 * unit - 1) * 1.7320508F);
    }
    return block;
  };
  static std::map<DataType, std::vector<std::byte>> blocks;
  std::vector<std::byte>& block = blocks[type];
  if (block.empty()) block = make(type);
  return block;
}

DeviceBytes RandomTensor(DataType type, std::int64_t bytes) {
  DeviceBytes tensor = AllocateDevice(bytes);
  const std::vector<std::byte>& block = RandomBlock(type);
  std::int64_t done = std::min(static_cast<std::int64_t>(block.size()), bytes);
  CheckCuda(cudaMemcpy(tensor.get(), block.data(), static_cast<std::size_t>(done),
                       cudaMemcpyHostToDevice),
            "copy of random values");
  while (done < bytes) {
    const std::int64_t more = std::min(done, bytes - done);
    CheckCuda(cudaMemcpy(tensor.get() + done, tensor.get(), static_cast<std::size_t>(more),
                         cudaMemcpyDeviceToDevice),
              "copy of random values");
    done += more;
  }
  return tensor;
}

}  // namespace

DeviceBytes AllocateDevice(std::int64_t bytes) {
  void* memory = nullptr;
  CheckCuda(cudaMalloc(&memory, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1))),
            "allocation");
  return DeviceBytes(static_cast<std::byte*>(memory));
}

void CheckCuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
  }
}

DeviceLimits CurrentCard() {
  DeviceLimits limits;
  limits.kind = DeviceKind::kCuda;
  int device = 0;
  int major = 0;
  int minor = 0;
  CheckCuda(cudaGetDevice(&device), "CUDA device");
  CheckCuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "device");
  CheckCuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "device");
  CheckCuda(cudaDeviceGetAttribute(&limits.num_threads, cudaDevAttrMultiProcessorCount, device),
            "device");
  limits.compute_capability = 10 * major + minor;
  return limits;
}

CudaBenchProblem::CudaBenchProblem(const CudaBenchCase& bench_case, int max_sets)
    : case_(bench_case) {
  const BenchCase& shape = case_.shape;
  const double bytes =
      static_cast<double>(ElementBytes(shape.data_type)) * shape.num_sequences *
      (2.0 * shape.kv_length * shape.num_kv_heads + 1.0 * shape.query_length * shape.num_heads) *
      shape.head_dim;
  const int sets = std::clamp(static_cast<int>(kBeyondL2 / bytes) + 1, 1, max_sets);
  for (int i = 0; i < sets; ++i) sets_.push_back(MakeSet(i));
  for (Set& set : sets_) set.params.sequences = set.sequences.data();
}

std::int64_t CudaBenchProblem::AddPages(Set& set, int index) const {
  const BenchCase& shape = case_.shape;
  AttentionParams& params = set.params;
  params.page_layout = {shape.data_type, shape.page_tokens, shape.num_kv_heads, shape.head_dim,
                        PaddedHeadDim(shape.head_dim)};
  const std::int64_t pages_each = (shape.kv_length + shape.page_tokens - 1) / shape.page_tokens;
  const std::int64_t pages = pages_each * shape.num_sequences;
  params.pool_bytes = pages * params.page_layout.page_bytes();
  set.k = RandomTensor(shape.data_type, params.pool_bytes);  // the pool
  params.pool = set.k.get();
  std::vector<std::uint32_t> table(static_cast<std::size_t>(pages));
  std::iota(table.begin(), table.end(), 0U);
  std::shuffle(table.begin(), table.end(), std::mt19937(static_cast<unsigned>(index) + 1));
  for (std::uint32_t& entry : table) {
    entry *= static_cast<std::uint32_t>(params.page_layout.page_bytes() / kPageUnitBytes);
  }
  set.page_table = AllocateDevice(pages * 4);
  CheckCuda(cudaMemcpy(set.page_table.get(), table.data(), static_cast<std::size_t>(pages * 4),
                       cudaMemcpyHostToDevice),
            "copy of the page table");
  return pages_each;
}

CudaBenchProblem::Set CudaBenchProblem::MakeSet(int index) const {
  const BenchCase& shape = case_.shape;
  const std::int64_t q_row = std::int64_t{shape.num_heads} * shape.head_dim;
  const std::int64_t kv_row = std::int64_t{shape.num_kv_heads} * shape.head_dim;
  const std::int64_t element = ElementBytes(shape.data_type);
  const std::int64_t q_bytes = element * shape.query_length * q_row;
  const std::int64_t kv_bytes = element * shape.kv_length * kv_row;
  Set set;
  AttentionParams& params = set.params;
  params.data_type = params.kv_data_type = shape.data_type;
  params.num_heads = shape.num_heads;
  params.num_kv_heads = shape.num_kv_heads;
  params.head_dim = shape.head_dim;
  params.num_sequences = shape.num_sequences;
  set.q = RandomTensor(shape.data_type, shape.num_sequences * q_bytes);
  set.o = AllocateDevice(shape.num_sequences * q_bytes);
  CheckCuda(cudaMemset(set.o.get(), 0xFF, static_cast<std::size_t>(shape.num_sequences * q_bytes)),
            "poison of the output");
  std::int64_t pages_each = 0;
  if (shape.page_tokens == 0) {
    set.k = RandomTensor(shape.data_type, shape.num_sequences * kv_bytes);
    set.v = RandomTensor(shape.data_type, shape.num_sequences * kv_bytes);
  } else {
    pages_each = AddPages(set, index);
  }
  for (std::int64_t i = 0; i < shape.num_sequences; ++i) {
    AttentionSequence sequence;
    sequence.q = set.q.get() + i * q_bytes;
    sequence.o = set.o.get() + i * q_bytes;
    sequence.q_token_stride = sequence.o_token_stride = q_row;
    sequence.q_head_stride = sequence.o_head_stride = shape.head_dim;
    if (shape.page_tokens == 0) {
      sequence.kv.k = set.k.get() + i * kv_bytes;
      sequence.kv.v = set.v.get() + i * kv_bytes;
      sequence.kv.k_token_stride = sequence.kv.v_token_stride = kv_row;
      sequence.kv.k_head_stride = sequence.kv.v_head_stride = shape.head_dim;
    } else {
      sequence.kv.page_table =
          reinterpret_cast<const std::uint32_t*>(set.page_table.get()) + i * pages_each;
    }
    sequence.query_length = shape.query_length;
    sequence.kv_length = shape.kv_length;
    sequence.query_position = shape.kv_length - shape.query_length;
    sequence.causal = shape.causal;
    sequence.window_left = shape.window_left;
    sequence.softmax_scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
    set.sequences.push_back(sequence);
  }
  return set;
}

double CudaBenchProblem::Error() const {
  const BenchCase& shape = case_.shape;
  const std::int64_t rows = std::min(kSampleRows, shape.query_length);
  const std::int64_t q_row = std::int64_t{shape.num_heads} * shape.head_dim;
  const std::int64_t element = ElementBytes(shape.data_type);
  const std::int64_t values = 2 * rows * q_row;
  const DeviceBytes exact = AllocateDevice(values * element);
  std::vector<AttentionSequence> sample = {sets_[0].sequences.front(), sets_[0].sequences.back()};
  std::vector<std::byte> got(static_cast<std::size_t>(values * element));
  std::vector<std::byte> expected(got.size());
  for (std::size_t i = 0; i < sample.size(); ++i) {
    AttentionSequence& sequence = sample[i];
    const std::int64_t skipped = (shape.query_length - rows) * q_row * element;
    const std::int64_t sample_bytes = rows * q_row * element;
    const std::int64_t place = static_cast<std::int64_t>(i) * sample_bytes;
    CheckCuda(cudaMemcpy(got.data() + place, static_cast<const std::byte*>(sequence.o) + skipped,
                         static_cast<std::size_t>(sample_bytes), cudaMemcpyDeviceToHost),
              "copy of the output");
    sequence.q = static_cast<const std::byte*>(sequence.q) + skipped;
    sequence.o = exact.get() + place;
    sequence.query_length = static_cast<std::int32_t>(rows);
    sequence.query_position = shape.kv_length - rows;
  }
  AttentionParams params = sets_[0].params;
  params.sequences = sample.data();
  params.num_sequences = 2;
  const DeviceLimits limits = CurrentCard();
  const KernelRow* row = FindKernel({Operation::kExact, shape.data_type, shape.data_type,
                                     shape.head_dim, RequiredFeatures(params)},
                                    limits);
  if (row == nullptr ||
      RunCudaAttention(*row, params, limits, {}, nullptr).status != LaunchStatus::kOk) {
    throw std::runtime_error("the exact row failed");
  }
  CheckCuda(cudaMemcpy(expected.data(), exact.get(), expected.size(), cudaMemcpyDeviceToHost),
            "copy of the exact output");
  double difference = 0;
  double norm = 0;
  for (std::int64_t i = 0; i < values; ++i) {
    const double is = LoadElement(got.data(), shape.data_type, i);
    const double wanted = LoadElement(expected.data(), shape.data_type, i);
    difference += (is - wanted) * (is - wanted);
    norm += wanted * wanted;
  }
  const double error = std::sqrt(difference / norm);
  return std::isnan(error) ? INFINITY : error;
}

double CudaBenchProblem::Tolerance() const {
  switch (case_.shape.data_type) {
    case DataType::kFp32:
      return 1e-5;
    case DataType::kFp16:
      return 1e-3;
    default:
      return 8e-3;
  }
}

}  // namespace attnd::kernels::bench
