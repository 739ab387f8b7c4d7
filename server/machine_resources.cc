#include "server/machine_resources.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/flag_value.h"

namespace attnd {
namespace {

constexpr std::int64_t kDefaultMaxCacheBytes = std::int64_t{4} << 30;
constexpr std::int64_t kSlabBytes = std::int64_t{2} << 20;
// Calls of one connection: all that may wait, and some that the queue refuses.
constexpr int kLeastStreams = 16, kMostStreams = 4096;
constexpr std::int64_t kDefaultMemoryShare = 4;  // a quarter
constexpr int kDefaultMaxConnections = 16'384;
// Descriptors of everything but connections to the gRPC port: about 15, and up to 70 of the admin
// port. A tight limit is shared: three quarters are then theirs.
constexpr std::int64_t kOtherDescriptors = 96;
constexpr std::int64_t kTightConnectionShare = 4;
constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

std::vector<std::string> ReadWords(const std::string& path) {
  std::vector<std::string> words;
  std::ifstream file(path);
  for (std::string word; file >> word;) words.push_back(std::move(word));
  return words;
}

std::optional<std::int64_t> WholeNumber(const std::string& word) {
  const absl::StatusOr<std::int64_t> value = ParseCount(word);
  if (!value.ok()) return std::nullopt;
  return *value;
}

std::int64_t MachineMemory(const std::string& root) {
  const std::vector<std::string> words = ReadWords(root + "/proc/meminfo");
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] != "MemTotal:") continue;
    const std::optional<std::int64_t> kib = WholeNumber(words[i + 1]);
    if (kib) return *kib * 1024;
  }
  return kUnlimited;
}

// Folders of this process's cgroup and all that enclose it, for the hierarchy of `controller`
// (empty: version 2). Inside a container the path may be the host's and not exist here: the root of
// the mount is then the container's own group, and the list ends with it.
std::vector<std::string> CgroupFolders(const std::string& root, const std::string& controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    const bool found = controller.empty() ? parts[1].empty()
                                          : std::find(controllers.begin(), controllers.end(),
                                                      controller) != controllers.end();
    if (!found) continue;
    const std::string mount =
        root + "/sys/fs/cgroup" + (controller.empty() ? "" : "/" + controller);
    std::vector<std::string> folders;
    for (std::string path = parts[2] == "/" ? "" : parts[2]; !path.empty();
         path.erase(path.rfind('/'))) {
      folders.push_back(mount + path);
    }
    folders.push_back(mount);
    return folders;
  }
  return {};
}

std::int64_t CgroupMemory(const std::string& root) {
  std::int64_t limit = kUnlimited;
  const auto tighten = [&limit](const std::string& path) {
    const std::vector<std::string> words = ReadWords(path);
    const std::optional<std::int64_t> value =
        words.empty() ? std::nullopt : WholeNumber(words[0]);  // "max": no limit
    if (value && *value > 0) limit = std::min(limit, *value);
  };
  for (const std::string& folder : CgroupFolders(root, "")) tighten(folder + "/memory.max");
  for (const std::string& folder : CgroupFolders(root, "memory")) {
    tighten(folder + "/memory.limit_in_bytes");
  }
  return limit;
}

// Whole cores of the CPU quota: with a thread more than that the scheduler stops all of them for
// part of each period.
int CgroupCores(const std::string& root) {
  double cores = std::numeric_limits<int>::max();
  const auto tighten = [&cores](const std::vector<std::string>& quota_and_period) {
    if (quota_and_period.size() < 2) return;
    const std::optional<std::int64_t> quota = WholeNumber(quota_and_period[0]);
    const std::optional<std::int64_t> period = WholeNumber(quota_and_period[1]);
    if (quota && period && *quota > 0 && *period > 0) {
      cores = std::min(cores, static_cast<double>(*quota) / static_cast<double>(*period));
    }
  };
  for (const std::string& folder : CgroupFolders(root, "")) tighten(ReadWords(folder + "/cpu.max"));
  for (const std::string& folder : CgroupFolders(root, "cpu")) {
    std::vector<std::string> words = ReadWords(folder + "/cpu.cfs_quota_us");
    for (std::string& word : ReadWords(folder + "/cpu.cfs_period_us")) words.push_back(word);
    tighten(words);
  }
  return static_cast<int>(std::floor(cores));
}

std::int64_t MaxOpenFiles() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= static_cast<rlim_t>(kUnlimited)) {
    return kUnlimited;
  }
  return static_cast<std::int64_t>(limit.rlim_cur);
}

absl::Status ResolveMaxConnections(std::int64_t max_open_files, int& max_connections) {
  const std::int64_t most =
      std::max(max_open_files - kOtherDescriptors, max_open_files / kTightConnectionShare);
  if (max_connections == 0) {
    max_connections = static_cast<int>(std::min<std::int64_t>(most, kDefaultMaxConnections));
  }
  if (max_connections <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--max_connections: got '", max_connections, "', need at most ", most, ", what the limit of ",
      max_open_files, " open files (ulimit -n) leaves for connections"));
}

absl::Status CheckFits(const char* flag, std::int64_t bytes, std::int64_t memory_bytes) {
  if (bytes <= memory_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": got '", FormatByteSize(bytes),
                                                 "', need at most ", FormatByteSize(memory_bytes),
                                                 ", the memory that this process may use"));
}

}  // namespace

MachineResources ReadMachineResources(int affinity_cores, const std::string& root) {
  MachineResources resources;
  resources.memory_bytes = std::min(MachineMemory(root), CgroupMemory(root));
  resources.cores = std::max(1, std::min(affinity_cores, CgroupCores(root)));
  resources.max_open_files = MaxOpenFiles();
  return resources;
}

MachineResources ReadMachineResources() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  const bool known = sched_getaffinity(0, sizeof mask, &mask) == 0;
  return ReadMachineResources(known ? CPU_COUNT(&mask) : 1);
}

absl::StatusOr<ServerConfig> ResolveDefaults(ServerConfig config,
                                             const MachineResources& resources) {
  const std::int64_t share = resources.memory_bytes / kDefaultMemoryShare;
  if (config.threads == 0) config.threads = resources.cores;
  if (config.cache_bytes == 0) {
    const std::int64_t bytes = std::min(kDefaultMaxCacheBytes, share);
    config.cache_bytes = std::max(kSlabBytes, bytes / kSlabBytes * kSlabBytes);
  }
  if (config.workspace_bytes == 0) config.workspace_bytes = std::max(kSlabBytes, share);
  if (config.max_concurrent_streams == 0) {
    config.max_concurrent_streams = std::clamp(
        std::min(config.max_queue_requests, kMostStreams) / 2 * 3, kLeastStreams, kMostStreams);
  }
  if (absl::Status status = ResolveMaxConnections(resources.max_open_files, config.max_connections);
      !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckFits("cache_bytes", config.cache_bytes, resources.memory_bytes);
      !status.ok()) {
    return status;
  }
  if (absl::Status status =
          CheckFits("host_cache_bytes", config.host_cache_bytes, resources.memory_bytes);
      !status.ok()) {
    return status;
  }
  if (absl::Status status =
          CheckFits("workspace_bytes", config.workspace_bytes, resources.memory_bytes);
      !status.ok()) {
    return status;
  }
  return config;
}

}  // namespace attnd
