#include "kernels/cpu/ceilings.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "kernels/attention_kernels.h"
#include "kernels/cpu/cpu_executor.h"

namespace attnd::kernels {
namespace {

// Beyond the last-level cache of any single socket that a virtual machine shows us (at most a few
// hundred MiB of it are ours), small enough for a small machine.
constexpr std::int64_t kReadBufferBytes = std::int64_t{512} << 20;
constexpr std::int64_t kReadChunkBytes = std::int64_t{1} << 20;
static_assert(kReadChunkBytes % kReadBlockBytes == 0);

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// FLOP/s of all threads together: every thread runs bursts until `seconds` have passed.
double MeasureFlops(double (*run)(std::int64_t), CpuExecutor& executor, double seconds) {
  constexpr std::int64_t kBurstRounds = 100000;
  run(kBurstRounds);  // wakes the wide units and their clock
  constexpr int kMaxThreads = 1024;
  std::array<double, kMaxThreads> rates{};
  const int num_threads = std::min(executor.num_threads(), kMaxThreads);
  ParallelFor(executor, num_threads, [&](std::int64_t thread) {
    const auto start = std::chrono::steady_clock::now();
    double flops = 0;
    double elapsed = 0;
    do {
      flops += run(kBurstRounds);
      elapsed = SecondsSince(start);
    } while (elapsed < seconds);
    rates[thread] = flops / elapsed;
  });
  double sum = 0;
  for (const double rate : rates) sum += rate;
  return sum;
}

double MeasureRead(void (*read)(const std::byte*, std::int64_t), CpuExecutor& executor,
                   double seconds) {
  void* memory =
      mmap(nullptr, kReadBufferBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 0;
  madvise(memory, kReadBufferBytes, MADV_HUGEPAGE);  // fewer TLB misses where the kernel agrees
  auto* data = static_cast<std::byte*>(memory);
  const std::int64_t chunks = kReadBufferBytes / kReadChunkBytes;
  // Written first: untouched pages all map to one page of zeros.
  ParallelFor(executor, chunks, [&](std::int64_t chunk) {
    std::memset(data + chunk * kReadChunkBytes, 1, kReadChunkBytes);
  });
  // The mean of the passes, as a kernel's time is the mean of a block's launches.
  std::int64_t passes = 0;
  double elapsed = 0;
  const auto start = std::chrono::steady_clock::now();
  do {
    ParallelFor(executor, chunks,
                [&](std::int64_t chunk) { read(data + chunk * kReadChunkBytes, kReadChunkBytes); });
    ++passes;
    elapsed = SecondsSince(start);
  } while (elapsed < seconds);
  munmap(memory, kReadBufferBytes);
  return static_cast<double>(passes * kReadBufferBytes) / elapsed;
}

}  // namespace

double RunFp32Scalar(std::int64_t rounds) {
  constexpr int kLanes = 32;
  std::array<float, kLanes> sums{};
  volatile float factor_source = 1.0F;
  const float factor = factor_source;
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (float& sum : sums) sum = sum * factor + factor;
  }
  volatile float sink = 0;
  for (const float sum : sums) sink = sum;
  static_cast<void>(sink);
  return 2.0 * kLanes * static_cast<double>(rounds);
}

void ReadScalar(const std::byte* data, std::int64_t bytes) {
  std::uint64_t sum = 0;
  for (std::int64_t offset = 0; offset < bytes; offset += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + offset, sizeof word);
    sum ^= word;
  }
  volatile std::uint64_t sink = sum;
  static_cast<void>(sink);
}

CpuCeilings MeasureCpuCeilings(CpuTarget target, CpuExecutor& executor, double seconds) {
  if (target == CpuTarget::kAuto) target = BestCpuTarget();
  CpuCeilings ceilings;
  if (!CpuTargetSupported(target)) return ceilings;
  const bool has_avx2 = target >= CpuTarget::kAvx2;
  const bool has_avx512 = target >= CpuTarget::kAvx512;
  ceilings.fp32_flops_per_second = MeasureFlops(
      has_avx512 ? &RunFp32Avx512 : (has_avx2 ? &RunFp32Avx2 : &RunFp32Scalar), executor, seconds);
  if (target == CpuTarget::kAvx512Bf16) {
    ceilings.bf16_flops_per_second = MeasureFlops(&RunBf16Avx512Bf16, executor, seconds);
  }
  ceilings.read_bytes_per_second =
      MeasureRead(has_avx2 ? &ReadAvx2 : &ReadScalar, executor, seconds);
  return ceilings;
}

}  // namespace attnd::kernels
