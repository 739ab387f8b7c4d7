#include "server/metric_families.h"

#include <cstddef>
#include <iterator>

namespace attnd {
namespace {

using Type = prometheus::MetricType;

constexpr MetricFamilyInfo kFamilies[] = {
    {MetricId::kRequests, "attnd_requests_total", Type::Counter, "method, code",
     "Calls answered, by method and gRPC status code; each message of a DecodeStream counts as "
     "one."},
    {MetricId::kRequestDuration, "attnd_request_duration_seconds", Type::Histogram, "method",
     "Time from receipt to answer of calls answered OK; failures are in attnd_requests_total only, "
     "so that fast refusals do not flatter the latency."},
    {MetricId::kRejected, "attnd_rejected_total", Type::Counter,
     "reason = queue_full, cache_full, quota, workspace, deadline, draining, not_ready, "
     "message_size",
     "Requests refused or dropped before they ran, by reason."},
    {MetricId::kTransportBytes, "attnd_transport_bytes_total", Type::Counter,
     "path = in_band, shared_memory; direction = in, out",
     "Bytes of tensors and messages moved between clients and the server."},
    {MetricId::kStageDuration, "attnd_stage_duration_seconds", Type::Histogram,
     "stage = wire_decode, queue, host_to_device, kernel, device_to_host, wire_encode",
     "Time that requests or their batches spend in each stage between receipt and answer."},
    {MetricId::kQueueWait, "attnd_queue_wait_seconds", Type::Histogram, "class = decode, prefill",
     "Time from admission to the launch of the first batch that holds work of the request."},
    {MetricId::kQueueDepth, "attnd_queue_depth", Type::Gauge, "",
     "Requests admitted and not yet handed to the device."},
    {MetricId::kQueueBytes, "attnd_queue_bytes", Type::Gauge, "",
     "Bytes of the requests in the queue."},
    {MetricId::kRunningRequests, "attnd_running_requests", Type::Gauge, "",
     "Requests with work on the device now."},
    {MetricId::kRunningBatches, "attnd_running_batches", Type::Gauge, "",
     "Batches handed to the device and not yet completed."},
    {MetricId::kOpenStreams, "attnd_open_streams", Type::Gauge, "", "DecodeStream calls open now."},
    {MetricId::kConnections, "attnd_connections", Type::Gauge, "",
     "Connections to the gRPC port open now."},
    {MetricId::kConnectionsRefused, "attnd_connections_refused_total", Type::Counter, "",
     "Connections to the gRPC port that were closed at once: --max_connections were open, or no "
     "file descriptor was free."},
    {MetricId::kBatchRequests, "attnd_batch_requests", Type::Histogram, "",
     "Requests that share a batch."},
    {MetricId::kBatchSequences, "attnd_batch_sequences", Type::Histogram, "",
     "Sequences in a batch."},
    {MetricId::kBatchTokens, "attnd_batch_tokens", Type::Histogram, "", "Query tokens in a batch."},
    {MetricId::kBatchClosed, "attnd_batch_closed_total", Type::Counter,
     "reason = queue_empty, sequences, tokens, chunk, alone, shape",
     "Batches by the reason that no more work was added: nothing compatible waited, a limit of "
     "sequences or tokens, the prefill chunk budget, a request that runs alone, or another shape "
     "class."},
    {MetricId::kKernelLaunches, "attnd_kernel_launches_total", Type::Counter, "",
     "Kernel launches; attnd_kernel_duration_seconds_count tells them by kernel."},
    {MetricId::kKernelDuration, "attnd_kernel_duration_seconds", Type::Histogram, "kernel, device",
     "Duration of kernel launches, measured on the device."},
    {MetricId::kKernelBusy, "attnd_kernel_busy_seconds_total", Type::Counter, "kernel, device",
     "Time the device spent in kernel launches."},
    {MetricId::kKernelHbmBytes, "attnd_kernel_hbm_bytes_total", Type::Counter,
     "kernel, device, direction = read, write",
     "Bytes that kernels move through device memory; modelled from the shapes of each launch, not "
     "counted by hardware."},
    {MetricId::kKernelFlops, "attnd_kernel_flops_total", Type::Counter, "kernel, device",
     "Useful floating point operations of kernels, exact, from the shapes of each launch."},
    {MetricId::kHbmThroughput, "attnd_hbm_throughput_bytes_per_second", Type::Gauge,
     "kernel, device",
     "Modelled bytes through device memory over kernel time, of launches completed in the last 10 "
     "seconds; 0 without any."},
    {MetricId::kDeviceHbmBandwidth, "attnd_device_hbm_bandwidth_bytes_per_second", Type::Gauge,
     "device, kind = measured, datasheet",
     "Read bandwidth of the device's memory: measured at start, or from the maker's data sheet "
     "where known."},
    {MetricId::kLastKernelCompletion, "attnd_last_kernel_completion_timestamp_seconds", Type::Gauge,
     "device",
     "Unix time of the last kernel completion; absent before the first. With "
     "attnd_running_batches above 0 and an old time the device is stuck."},
    {MetricId::kExactReruns, "attnd_exact_reruns_total", Type::Counter, "",
     "Tile and head pairs that held a non-finite output and were computed again by the exact "
     "kernel."},
    {MetricId::kDeviceFaults, "attnd_device_faults_total", Type::Counter, "",
     "Device faults; after one the process ends with exit code 3."},
    {MetricId::kDeviceMemory, "attnd_device_memory_bytes", Type::Gauge,
     "device, state = used, free",
     "Memory of the whole GPU, other processes included, as its driver's NVML tells it once a "
     "second."},
    {MetricId::kDeviceUtilization, "attnd_device_utilization_ratio", Type::Gauge,
     "device, unit = compute, memory",
     "Share of time in which a kernel ran, and in which memory was read or written, as NVML "
     "counts it."},
    {MetricId::kDeviceClock, "attnd_device_clock_hertz", Type::Gauge, "device, clock = sm, memory",
     "Clocks of the GPU, from NVML."},
    {MetricId::kDevicePower, "attnd_device_power_watts", Type::Gauge, "device",
     "Power that the GPU draws, from NVML."},
    {MetricId::kDeviceTemperature, "attnd_device_temperature_celsius", Type::Gauge, "device",
     "Temperature of the GPU's chip, from NVML."},
    {MetricId::kSequences, "attnd_sequences", Type::Gauge, "state = active, idle",
     "Live sequences; active ones have a step waiting or running."},
    {MetricId::kSequencesEnded, "attnd_sequences_ended_total", Type::Counter,
     "reason = deleted, expired, evicted", "Sequences that ended, by reason."},
    {MetricId::kKvCachePages, "attnd_kv_cache_pages", Type::Gauge,
     "device, state = used, shared, free",
     "Pages of the KV cache: used by one sequence, shared by several, and free ones, counted in "
     "whole 2 MiB slabs since a page gets its size when a slab is cut; attnd_kv_cache_bytes has "
     "one "
     "unit for all."},
    {MetricId::kKvCacheBytes, "attnd_kv_cache_bytes", Type::Gauge,
     "device, state = used, reserved, free",
     "Bytes of the KV cache pool: holding pages in use, promised to sequences, neither."},
    {MetricId::kKvCacheHostBytes, "attnd_kv_cache_host_bytes", Type::Gauge, "state = used, free",
     "Host memory for keys and values of idle sequences (--host_cache_bytes)."},
    {MetricId::kKvCacheMovedBytes, "attnd_kv_cache_moved_bytes_total", Type::Counter,
     "direction = to_host, from_host",
     "Bytes of idle sequences that moved to host memory since the cache was full, and back with "
     "their next step."},
    {MetricId::kReady, "attnd_ready", Type::Gauge, "",
     "1 while the server reports SERVING, else 0."},
    {MetricId::kDraining, "attnd_draining", Type::Gauge, "",
     "1 while the server retires or stops, else 0."},
    {MetricId::kBuildInfo, "attnd_build_info", Type::Gauge, "version, commit, compiler, cpu_target",
     "Always 1; the labels tell what runs."},
    {MetricId::kDroppedSamples, "attnd_metrics_dropped_samples_total", Type::Counter, "",
     "Samples that were negative, not finite or out of range and were dropped."},
};

constexpr bool TableFollowsEnum() {
  if (std::size(kFamilies) != static_cast<std::size_t>(MetricId::kCount)) return false;
  for (std::size_t i = 0; i < std::size(kFamilies); ++i) {
    if (kFamilies[i].id != static_cast<MetricId>(i)) return false;
  }
  return true;
}
static_assert(TableFollowsEnum(), "one row a MetricId, in its order");

const char* TypeName(Type type) {
  switch (type) {
    case Type::Counter:
      return "counter";
    case Type::Gauge:
      return "gauge";
    default:
      return "histogram";
  }
}

}  // namespace

std::span<const MetricFamilyInfo> MetricFamilies() { return kFamilies; }

std::string MetricFamiliesAsMarkdown() {
  std::string page =
      "# Metrics\n"
      "\n"
      "This page is generated from the table of families: `ninja docs` writes it and a test "
      "compares.\n"
      "\n"
      "`GET /metrics` on the admin port answers in the Prometheus text format 0.0.4. Durations are "
      "seconds, sizes bytes. Every combination of labels that is known in advance is there from "
      "the start; series of a kernel appear with its first launch. What NVML tells is there on a "
      "GPU whose driver brings it (`--nvml_library`), as far as the GPU tells it; a server on the "
      "CPU shows it only where that flag names another library than the default, then of the "
      "library's first GPU with the label `device=\"nvml:0\"`. Figures that the driver has not "
      "renewed for ten seconds are left out. Recording takes no lock and a scrape "
      "delays no request.\n"
      "\n"
      "| name | type | labels | meaning |\n"
      "|---|---|---|---|\n";
  for (const MetricFamilyInfo& family : kFamilies) {
    page += std::string("| `") + family.name + "` | " + TypeName(family.type) + " | " +
            family.labels + " | " + family.help + " |\n";
  }
  return page;
}

}  // namespace attnd
