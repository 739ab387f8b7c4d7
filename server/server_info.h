// What GetServerInfo tells: version, devices, compiled kernels, limits in effect, cache.
#pragma once

#include "attnd/v1/attention.pb.h"
#include "server/attention_backend.h"
#include "server/build_info.h"
#include "server/request_validation.h"
#include "server/scheduler.h"
#include "server/server_config.h"

namespace attnd {

// The part that never changes while the server runs.
v1::GetServerInfoResponse FixedServerInfo(const ServerConfig& config, const BuildInfo& build,
                                          const BackendLimits& device, const RequestLimits& limits);

// `info` with what changes: the cache.
void FillCacheInfo(const Scheduler::Snapshot& snapshot, v1::CacheInfo& cache);

}  // namespace attnd
