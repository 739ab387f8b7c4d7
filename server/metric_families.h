// The table of metric families: the only place where a metric's name, type, labels and help stand.
// The exposition, the documentation and the tests walk it.
#pragma once

#include <span>
#include <string>

#include "prometheus/metric_type.h"

namespace attnd {

// Indexes MetricFamilies(); in the order of exposition.
enum class MetricId {
  kRequests,
  kRequestDuration,
  kRejected,
  kTransportBytes,
  kStageDuration,
  kQueueWait,
  kQueueDepth,
  kQueueBytes,
  kRunningRequests,
  kRunningBatches,
  kOpenStreams,
  kConnections,
  kConnectionsRefused,
  kBatchRequests,
  kBatchSequences,
  kBatchTokens,
  kBatchClosed,
  kKernelLaunches,
  kKernelDuration,
  kKernelBusy,
  kKernelHbmBytes,
  kKernelFlops,
  kHbmThroughput,
  kDeviceHbmBandwidth,
  kLastKernelCompletion,
  kExactReruns,
  kDeviceFaults,
  kDeviceMemory,
  kDeviceUtilization,
  kDeviceClock,
  kDevicePower,
  kDeviceTemperature,
  kSequences,
  kSequencesEnded,
  kKvCachePages,
  kKvCacheBytes,
  kKvCacheHostBytes,
  kKvCacheMovedBytes,
  kReady,
  kDraining,
  kBuildInfo,
  kDroppedSamples,
  kCount,
};

struct MetricFamilyInfo {
  MetricId id;
  const char* name;
  prometheus::MetricType type;
  const char* labels;  // comma separated, with the values where they are fixed
  const char* help;
};

std::span<const MetricFamilyInfo> MetricFamilies();

// The text of docs/metrics.md.
std::string MetricFamiliesAsMarkdown();

}  // namespace attnd
