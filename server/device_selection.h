// Which device runs the kernels: from the flags, what this build holds and what the machine has.
// Pure; the facts are read elsewhere (cuda_device.h), so that every machine can be tested on any.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/attention_kernels.h"

namespace attnd {

struct GpuFacts {
  int index = 0;               // as CUDA counts, CUDA_VISIBLE_DEVICES applied
  std::string name, uuid;      // "Tesla T4", "GPU-8a6e..."
  int compute_capability = 0;  // 75, 80, 90
  int multiprocessors = 0;
  std::int64_t memory_bytes = 0;
  double memory_bytes_per_second = 0;  // memory clock x bus width; 0: not told
};

struct CudaFacts {
  bool built = false;          // this binary holds CUDA kernels
  int needed_version = 0;      // CUDA version that it needs: 13000 is 13.0
  int supported_version = 0;   // newest that the driver supports; 0: no driver
  std::string driver_version;  // of the kernel module, "580.159.03"; empty: not told
  std::string fault;           // why the driver names no devices; empty: it does
  std::vector<GpuFacts> gpus;
};

struct DeviceChoice {
  bool cuda = false;
  GpuFacts gpu;                     // cuda only
  std::string device_name = "cpu";  // "cpu", "cuda:0"
  std::string kernel_arch;          // cuda only: newest rows in use, "sm80"
  int row_capability = 0;           // cuda only: rows up to this capability are chosen
  // One line for the log where the choice needs a word: why `auto` is not a GPU.
  std::string notice;
  bool notice_is_error = false;  // something is wrong that its owner should mend
};

// Architectures that the table has rows of, ascending: 75, 80.
std::vector<int> CompiledArchitectures(std::span<const kernels::KernelRow> table);

// `device`: auto, cpu, cuda:N; `kernel_arch`: auto, sm75, sm80, sm90. An error says what was asked
// for, what is there, and what helps.
absl::StatusOr<DeviceChoice> ChooseDevice(const std::string& device, const std::string& kernel_arch,
                                          const CudaFacts& facts,
                                          const std::vector<int>& architectures);

// N of "cuda:N"; -1 for any other text.
int CudaDeviceIndex(const std::string& device);

}  // namespace attnd
