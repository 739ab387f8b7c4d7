#include "server/device_selection.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace attnd {
namespace {

constexpr int kOldestCapability = 75;
constexpr char kNeededDriver[] = "580";

std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

std::string CapabilityText(int capability) {
  return absl::StrCat(capability / 10, ".", capability % 10);
}

// INVALID_ARGUMENT: the flags do not fit each other, this build or this machine's hardware, and
// never will. Other errors: what was asked for is missing now.
absl::Status ForDevice(const std::string& device, const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat("--device: got '", device, "': ", why));
}

// Why no GPU of this machine can be used at all; empty where one can.
std::string WhyNoCuda(const CudaFacts& facts) {
  if (!facts.built) return "this build has no CUDA kernels";
  if (facts.supported_version == 0) return "no NVIDIA driver";
  if (facts.supported_version < facts.needed_version) {
    const std::string driver =
        facts.driver_version.empty() ? "" : absl::StrCat(" ", facts.driver_version);
    return absl::StrCat("the NVIDIA driver", driver, " supports CUDA ",
                        VersionText(facts.supported_version), ", this build needs CUDA ",
                        VersionText(facts.needed_version), ", driver ", kNeededDriver,
                        " or newer: install a newer driver, or on a data centre GPU NVIDIA's "
                        "package cuda-compat-13-0");
  }
  if (!facts.fault.empty()) return absl::StrCat("the NVIDIA driver does not work: ", facts.fault);
  if (facts.gpus.empty()) return "no GPU";
  return "";
}

// A machine without a GPU is no fault; a driver that is too old or broken is.
bool NeedsMending(const CudaFacts& facts) {
  return facts.built && facts.supported_version != 0 &&
         (facts.supported_version < facts.needed_version || !facts.fault.empty());
}

std::string WhyNotGpu(const GpuFacts& gpu) {
  if (gpu.compute_capability >= kOldestCapability) return "";
  return absl::StrCat("the ", gpu.name, " has compute capability ",
                      CapabilityText(gpu.compute_capability), ", at least ",
                      CapabilityText(kOldestCapability), " is needed");
}

std::string ArchName(int architecture) { return absl::StrCat("sm", architecture); }

absl::Status ChooseRows(const std::string& kernel_arch, const std::vector<int>& architectures,
                        DeviceChoice& choice) {
  const int capability = choice.gpu.compute_capability;
  std::vector<std::string> names;
  int newest = 0;
  for (const int architecture : architectures) {
    names.push_back(ArchName(architecture));
    if (architecture <= capability) newest = std::max(newest, architecture);
  }
  const auto refuse = [&](const std::string& why) {
    return absl::InvalidArgumentError(
        absl::StrCat("--kernel_arch: got '", kernel_arch, "': ", why));
  };
  if (newest == 0) return refuse(absl::StrCat("no kernels for ", choice.gpu.name));
  if (kernel_arch == "auto") {
    choice.kernel_arch = ArchName(newest);
    choice.row_capability = capability;
    return absl::OkStatus();
  }
  const auto wanted = std::find(names.begin(), names.end(), kernel_arch);
  if (wanted == names.end()) {
    return refuse(absl::StrCat("this build has no kernels written for it; it has ",
                               absl::StrJoin(names, ", ")));
  }
  const int architecture = architectures[static_cast<std::size_t>(wanted - names.begin())];
  if (architecture > capability) {
    return refuse(absl::StrCat("the ", choice.gpu.name, " has compute capability ",
                               CapabilityText(capability)));
  }
  choice.kernel_arch = kernel_arch;
  choice.row_capability = architecture;
  return absl::OkStatus();
}

absl::StatusOr<DeviceChoice> ChooseGpu(const std::string& kernel_arch, const GpuFacts& gpu,
                                       const std::vector<int>& architectures) {
  DeviceChoice choice;
  choice.cuda = true;
  choice.gpu = gpu;
  choice.device_name = absl::StrCat("cuda:", gpu.index);
  if (absl::Status status = ChooseRows(kernel_arch, architectures, choice); !status.ok()) {
    return status;
  }
  return choice;
}

// Whoever names kernels of a GPU expects one.
DeviceChoice OnTheCpu(const std::string& kernel_arch, const std::string& why, DeviceChoice cpu) {
  cpu.notice = absl::StrCat("kernels run on the CPU: ", why);
  if (kernel_arch == "auto") return cpu;
  absl::StrAppend(&cpu.notice, "; --kernel_arch=", kernel_arch, " has no effect");
  cpu.notice_is_error = true;
  return cpu;
}

}  // namespace

std::vector<int> CompiledArchitectures(std::span<const kernels::KernelRow> table) {
  std::vector<int> architectures;
  for (const kernels::KernelRow& row : table) {
    const absl::string_view name = row.name;
    int architecture = 0;
    if (row.device != kernels::DeviceKind::kCuda || !absl::StartsWith(name, "sm")) continue;
    if (!absl::SimpleAtoi(name.substr(2, name.find('/') - 2), &architecture)) continue;
    architectures.push_back(architecture);
  }
  std::sort(architectures.begin(), architectures.end());
  architectures.erase(std::unique(architectures.begin(), architectures.end()), architectures.end());
  return architectures;
}

int CudaDeviceIndex(const std::string& device) {
  int index = -1;
  if (!absl::StartsWith(device, "cuda:")) return -1;
  const absl::string_view digits = absl::string_view(device).substr(5);
  if (digits.empty() || digits.size() > 3) return -1;
  if (digits.find_first_not_of("0123456789") != absl::string_view::npos) return -1;
  return absl::SimpleAtoi(digits, &index) ? index : -1;
}

absl::StatusOr<DeviceChoice> ChooseDevice(const std::string& device, const std::string& kernel_arch,
                                          const CudaFacts& facts,
                                          const std::vector<int>& architectures) {
  DeviceChoice cpu;
  if (device == "cpu") {
    if (kernel_arch == "auto") return cpu;
    return absl::InvalidArgumentError(absl::StrCat("--kernel_arch: got '", kernel_arch,
                                                   "': kernels of a GPU, and --device is cpu"));
  }
  const std::string why_none = WhyNoCuda(facts);
  if (device != "auto") {
    const absl::Status none = ForDevice(device, why_none);
    if (!facts.built) return absl::InvalidArgumentError(none.message());
    if (!why_none.empty()) return none;
    const int index = CudaDeviceIndex(device);
    for (const GpuFacts& gpu : facts.gpus) {
      if (gpu.index != index) continue;
      if (const std::string why = WhyNotGpu(gpu); !why.empty()) return ForDevice(device, why);
      return ChooseGpu(kernel_arch, gpu, architectures);
    }
    return ForDevice(
        device, absl::StrCat("this machine has ", facts.gpus.size(), " GPUs, counted from cuda:0"));
  }
  if (!why_none.empty()) {
    cpu.notice_is_error = NeedsMending(facts);
    return OnTheCpu(kernel_arch, why_none, cpu);
  }
  for (const GpuFacts& gpu : facts.gpus) {
    if (WhyNotGpu(gpu).empty()) return ChooseGpu(kernel_arch, gpu, architectures);
  }
  return OnTheCpu(kernel_arch, WhyNotGpu(facts.gpus.front()), cpu);
}

}  // namespace attnd
