#include "server/cuda_memory_budget.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/flag_value.h"

namespace attnd {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kSlabBytes = 2 * kMiB;
constexpr std::int64_t kArenas = 2;  // batches in flight
// Working memory of a launch, unless the flag says otherwise: the partial states of a split decode
// take a few MiB, the scores of a naive launch as much as they get.
constexpr std::int64_t kWorkspaceShare = 16;
constexpr std::int64_t kMostWorkspace = 2048 * kMiB;
// Code of the kernels, the driver's own needs, a rerun's arrays.
constexpr std::int64_t kSpareShare = 32;
constexpr std::int64_t kLeastSpare = 256 * kMiB;
// A message in, and answers: FP32 for 16-bit queries at most doubles them.
constexpr std::int64_t kMessagesInArena = 3;

// Not a wrong flag: another process may hold the rest, and go.
absl::Status DoesNotFit(const char* flag, std::int64_t bytes, std::int64_t room) {
  return absl::ResourceExhaustedError(absl::StrCat("--", flag, ": got '", FormatByteSize(bytes),
                                                   "', need at most ", FormatByteSize(room),
                                                   ", what the GPU has free for it"));
}

}  // namespace

std::int64_t ArenaBytes(const ServerConfig& config) {
  const std::int64_t bytes = config.workspace_bytes + kMessagesInArena * config.max_message_bytes;
  return (bytes + kSlabBytes - 1) / kSlabBytes * kSlabBytes;
}

absl::StatusOr<ServerConfig> ResolveCudaDefaults(ServerConfig config,
                                                 const MachineResources& machine,
                                                 std::int64_t free_bytes) {
  if (config.workspace_bytes == 0) {
    config.workspace_bytes = std::clamp(free_bytes / kWorkspaceShare / kSlabBytes * kSlabBytes,
                                        kSlabBytes, kMostWorkspace);
  }
  const std::int64_t spare = std::max(kLeastSpare, free_bytes / kSpareShare);
  const std::int64_t for_arenas = free_bytes - spare - kSlabBytes;
  const std::int64_t arenas = kArenas * ArenaBytes(config);
  if (arenas > for_arenas) {
    return DoesNotFit("workspace_bytes", config.workspace_bytes,
                      std::max<std::int64_t>(
                          0, for_arenas / kArenas - kMessagesInArena * config.max_message_bytes));
  }
  const std::int64_t room = (free_bytes - spare - arenas) / kSlabBytes * kSlabBytes;
  if (config.cache_bytes == 0) config.cache_bytes = room;
  if (config.cache_bytes > room) return DoesNotFit("cache_bytes", config.cache_bytes, room);
  // Page-locked: what does not fit would take the machine down with it.
  if (config.host_cache_bytes > machine.memory_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--host_cache_bytes: got '", FormatByteSize(config.host_cache_bytes), "', need at most ",
        FormatByteSize(machine.memory_bytes), ", the memory that this process may use"));
  }
  // Everything else follows the host, whose memory does not bound the GPU's.
  MachineResources host = machine;
  host.memory_bytes = std::numeric_limits<std::int64_t>::max();
  return ResolveDefaults(std::move(config), host);
}

}  // namespace attnd
