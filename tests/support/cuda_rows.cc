// The CUDA rows under test: the problem's memory is copied to the device as it is, poison and
// guards included, and its outputs back.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>

#include "kernels/cuda_kernels.h"
#include "tests/support/attention_problem.h"

namespace attnd {
namespace {

using kernels::LaunchStatus;

// Why there is no CUDA device; empty where there is one.
std::string NoDevice() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  return count == 0 ? "no CUDA device" : "";
}

// Every test is reported as skipped, with the reason, where there is no device.
class SkipsWithoutDevice : public ::testing::EmptyTestEventListener {
 public:
  void OnTestStart(const ::testing::TestInfo& /*test*/) override {
    static const std::string reason = NoDevice();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};
[[maybe_unused]] const bool kListens = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new SkipsWithoutDevice);
  return true;
}();

kernels::DeviceLimits Limits() {
  int major = 0;
  int minor = 0;
  int multiprocessors = 1;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0);
  return {kernels::DeviceKind::kCuda, 10 * major + minor, kernels::CpuTarget::kAuto,
          multiprocessors};
}

// Device copies of host regions. Few of them get an allocation each, so that a memory checker sees
// every overrun; thousands share one.
class DeviceMemory {
 public:
  explicit DeviceMemory(const std::vector<MemoryRegion>& regions) : regions_(regions) {
    constexpr std::size_t kOwnAllocations = 64;
    constexpr std::size_t kBoundary = 256;
    if (regions.size() > kOwnAllocations) {
      std::size_t bytes = 0;
      for (const MemoryRegion& region : regions) {
        bytes += (region.bytes + kBoundary - 1) / kBoundary * kBoundary;
      }
      std::byte* next = Allocate(bytes);
      // One copy of everything: thousands of small ones would take minutes.
      std::vector<std::byte> staged(bytes);
      std::size_t at = 0;
      for (const MemoryRegion& region : regions) {
        device_[region.data] = next + at;
        std::copy_n(region.data, region.bytes, staged.begin() + static_cast<std::ptrdiff_t>(at));
        at += (region.bytes + kBoundary - 1) / kBoundary * kBoundary;
      }
      Check(cudaMemcpy(next, staged.data(), bytes, cudaMemcpyHostToDevice));
      return;
    }
    for (const MemoryRegion& region : regions) {
      std::byte* memory = Allocate(region.bytes);
      device_[region.data] = memory;
      Check(cudaMemcpy(memory, region.data, region.bytes, cudaMemcpyHostToDevice));
    }
  }
  ~DeviceMemory() {
    for (void* memory : owned_) cudaFree(memory);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // The device address of a host address inside a region; null stays null.
  template <class T>
  T* Of(T* host) const {
    if (host == nullptr) return nullptr;
    auto* address = reinterpret_cast<std::byte*>(const_cast<std::remove_const_t<T>*>(host));
    auto region = device_.upper_bound(address);
    if (region == device_.begin()) return nullptr;
    --region;
    return reinterpret_cast<T*>(region->second + (address - region->first));
  }
  const void* Of(const void* host) const { return Of(static_cast<const std::byte*>(host)); }
  void* Of(void* host) const { return Of(static_cast<std::byte*>(host)); }

  void CopyBack() const {
    if (owned_.size() == 1 && regions_.size() > 1) return CopyBackTogether();
    for (const MemoryRegion& region : regions_) {
      if (!region.written) continue;
      Check(cudaMemcpy(region.data, device_.at(region.data), region.bytes, cudaMemcpyDeviceToHost));
    }
  }

 private:
  std::byte* Allocate(std::size_t bytes) {
    void* memory = nullptr;
    Check(cudaMalloc(&memory, std::max<std::size_t>(bytes, 1)));
    owned_.push_back(memory);
    size_ = bytes;
    return static_cast<std::byte*>(memory);
  }
  void CopyBackTogether() const {
    std::vector<std::byte> staged(size_);
    Check(cudaMemcpy(staged.data(), owned_[0], size_, cudaMemcpyDeviceToHost));
    for (const MemoryRegion& region : regions_) {
      if (!region.written) continue;
      const std::ptrdiff_t at = device_.at(region.data) - static_cast<const std::byte*>(owned_[0]);
      std::copy_n(staged.begin() + at, region.bytes, region.data);
    }
  }
  static void Check(cudaError_t error) {
    if (error == cudaSuccess) return;
    ADD_FAILURE() << cudaGetErrorString(error);
    std::abort();  // a sticky error: every later launch of this process would fail too
  }

  std::vector<MemoryRegion> regions_;
  std::vector<void*> owned_;
  std::size_t size_ = 0;
  std::map<std::byte*, std::byte*> device_;
};

}  // namespace

std::vector<const kernels::KernelRow*> AttentionRows(const AttentionProblem& problem) {
  std::vector<const kernels::KernelRow*> rows;
  const std::uint32_t features = kernels::RequiredFeatures(problem.params());
  const int capability = Limits().compute_capability;
  for (const kernels::KernelRow& row : kernels::KernelTable()) {
    if (row.device != kernels::DeviceKind::kCuda || row.operation == kernels::Operation::kAppend ||
        row.operation == kernels::Operation::kMergeStates ||
        (row.data_types & kernels::TypeBit(problem.shape().type)) == 0 ||
        row.max_head_dim < problem.shape().head_dim || (features & ~row.features) != 0 ||
        capability < row.first_cc || capability > row.last_cc) {
      continue;
    }
    rows.push_back(&row);
  }
  return rows;
}

kernels::LaunchResult LaunchRow(AttentionProblem& problem, const kernels::KernelRow& row,
                                const RunSettings& settings, kernels::LaunchPlan& plan) {
  const DeviceMemory memory(problem.Regions());
  const kernels::AttentionParams& host = problem.params();
  std::vector<kernels::AttentionSequence> sequences(host.sequences,
                                                    host.sequences + host.num_sequences);
  for (kernels::AttentionSequence& sequence : sequences) {
    sequence.q = memory.Of(sequence.q);
    sequence.o = memory.Of(sequence.o);
    sequence.lse = memory.Of(sequence.lse);
    sequence.kv.k = memory.Of(sequence.kv.k);
    sequence.kv.v = memory.Of(sequence.kv.v);
    sequence.kv.page_table = memory.Of(sequence.kv.page_table);
    sequence.alibi_slopes = memory.Of(sequence.alibi_slopes);
    sequence.sink_logits = memory.Of(sequence.sink_logits);
    sequence.bias = memory.Of(sequence.bias);
  }
  kernels::AttentionParams params = host;
  params.sequences = sequences.data();
  params.pool = memory.Of(host.pool);
  plan = kernels::PlanAttention(row, params, Limits(), settings.plan);
  const kernels::LaunchResult result =
      kernels::RunCudaAttention(row, params, Limits(), settings.plan, nullptr);
  memory.CopyBack();
  return result;
}

}  // namespace attnd
