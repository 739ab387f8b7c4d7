#include "server/metrics.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <exception>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "prometheus/collectable.h"
#include "server/exposition_text.h"
#include "server/kernel_series.h"
#include "server/metric_families.h"
#include "server/striped_counter.h"
#include "server/striped_histogram.h"

namespace attnd {
namespace {

using prometheus::ClientMetric, prometheus::MetricFamily;
using Labels = std::vector<ClientMetric::Label>;

// Label values, indexed by the enums of metrics.h.
constexpr const char* kMethodNames[] = {"Attend",
                                        "Decode",
                                        "DecodeStream",
                                        "CreateSequence",
                                        "ForkSequence",
                                        "GetSequence",
                                        "ListSequences",
                                        "RenewSequences",
                                        "TruncateSequences",
                                        "DeleteSequences",
                                        "RegisterSharedMemory",
                                        "UnregisterSharedMemory",
                                        "ListSharedMemory",
                                        "GetServerInfo"};
constexpr const char* kCodeNames[] = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};
constexpr const char* kQueueClassNames[] = {"decode", "prefill"};
constexpr const char* kStageNames[] = {"wire_decode", "queue",          "host_to_device",
                                       "kernel",      "device_to_host", "wire_encode"};
constexpr const char* kBatchClosedNames[] = {"queue_empty", "sequences", "tokens",
                                             "chunk",       "alone",     "shape"};
constexpr const char* kRejectNames[] = {"queue_full", "cache_full", "quota",     "workspace",
                                        "deadline",   "draining",   "not_ready", "message_size"};
constexpr const char* kPathNames[] = {"in_band", "shared_memory"};
constexpr const char* kDirectionNames[] = {"in", "out"};
constexpr const char* kBandwidthKindNames[] = {"measured", "datasheet"};
constexpr const char* kSequenceEndNames[] = {"deleted", "expired", "evicted"};

constexpr int kNumMethods = std::size(kMethodNames);
constexpr int kNumCodes = std::size(kCodeNames);
constexpr int kOk = 0, kUnknown = 2;
static_assert(kNumMethods == static_cast<int>(Method::kGetServerInfo) + 1);
static_assert(std::size(kQueueClassNames) == static_cast<int>(QueueClass::kPrefill) + 1);
static_assert(std::size(kStageNames) == static_cast<int>(Stage::kWireEncode) + 1);
static_assert(std::size(kBatchClosedNames) == static_cast<int>(BatchClosed::kShape) + 1);
static_assert(std::size(kRejectNames) == static_cast<int>(RejectReason::kMessageSize) + 1);
static_assert(std::size(kPathNames) == static_cast<int>(TransportPath::kSharedMemory) + 1);
static_assert(std::size(kDirectionNames) == static_cast<int>(Direction::kOut) + 1);
static_assert(std::size(kSequenceEndNames) == static_cast<int>(SequenceEnd::kEvicted) + 1);

double Seconds(Clock::Duration duration) { return std::chrono::duration<double>(duration).count(); }

template <typename Enum>
int Index(Enum value) {
  return static_cast<int>(value);
}

// Families under construction during a scrape, in the order of the family table.
class Scrape {
 public:
  Scrape() {
    families_.reserve(MetricFamilies().size());
    for (const MetricFamilyInfo& info : MetricFamilies()) {
      families_.push_back({info.name, info.help, info.type, {}});
    }
  }

  // A counter or a gauge, by the family's type.
  void Value(MetricId id, Labels labels, double value) {
    MetricFamily& family = families_[static_cast<std::size_t>(id)];
    ClientMetric& metric = family.metric.emplace_back();
    metric.label = std::move(labels);
    if (family.type == prometheus::MetricType::Counter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
  }

  void Histogram(MetricId id, Labels labels, const StripedHistogram& histogram) {
    ClientMetric& metric = families_[static_cast<std::size_t>(id)].metric.emplace_back();
    metric.label = std::move(labels);
    metric.histogram = histogram.Collect();
  }

  // Every counter of a set that has one label.
  void Counters(MetricId id, const char* label, std::span<const char* const> values,
                const StripedCounters& counters) {
    for (int i = 0; i < counters.size(); ++i) {
      Value(id, {{label, values[static_cast<std::size_t>(i)]}}, counters.Value(i));
    }
  }

  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  std::vector<MetricFamily> families_;
};

template <std::size_t kSize>
std::vector<StripedHistogram> MakeHistograms(std::span<const double> bounds) {
  std::vector<StripedHistogram> histograms;
  histograms.reserve(kSize);
  for (std::size_t i = 0; i < kSize; ++i) histograms.emplace_back(bounds);
  return histograms;
}

}  // namespace

const char* MethodName(Method method) {
  const auto index = static_cast<std::size_t>(method);
  return index < std::size(kMethodNames) ? kMethodNames[index] : "unknown";
}

struct Metrics::Impl final : prometheus::Collectable {
  Impl(BuildInfo build_info, std::string device_name, const Clock& clock_source)
      : build(std::move(build_info)), device(std::move(device_name)), clock(clock_source) {}

  std::vector<MetricFamily> Collect() const override;

  void Check(bool recorded) noexcept {
    if (!recorded) dropped_samples.fetch_add(1, std::memory_order_relaxed);
  }
  template <typename Enum>
  void Observe(std::vector<StripedHistogram>& histograms, Enum which, double value) noexcept {
    const auto index = static_cast<std::size_t>(which);
    Check(index < histograms.size() && histograms[index].Observe(value));
  }
  GaugeSnapshot ReadGauges() const noexcept;

  void CollectRequests(Scrape& scrape) const;
  void CollectBatches(Scrape& scrape) const;
  void CollectKernels(Scrape& scrape) const;
  void CollectGauges(Scrape& scrape) const;
  static void CollectSensors(const DeviceReading& gpu, Scrape& scrape);

  const BuildInfo build;
  const std::string device;
  const Clock& clock;

  StripedCounters requests{kNumMethods * kNumCodes};
  std::vector<StripedHistogram> request_duration =
      MakeHistograms<kNumMethods>(RequestDurationBounds());
  std::vector<StripedHistogram> queue_wait =
      MakeHistograms<std::size(kQueueClassNames)>(KernelDurationBounds());
  std::vector<StripedHistogram> stage_duration =
      MakeHistograms<std::size(kStageNames)>(KernelDurationBounds());
  StripedCounters rejected{std::size(kRejectNames)};
  StripedCounters transport_bytes{std::size(kPathNames) * std::size(kDirectionNames)};

  StripedHistogram batch_requests{BatchSequenceBounds()};
  StripedHistogram batch_sequences{BatchSequenceBounds()};
  StripedHistogram batch_tokens{BatchTokenBounds()};
  StripedCounters batch_closed{std::size(kBatchClosedNames)};

  enum DeviceCounter : int { kLaunches, kExactReruns, kDeviceFaults, kNumDeviceCounters };
  StripedCounters device_counters{kNumDeviceCounters};
  KernelSeriesList kernels;
  std::atomic<double> last_completion_unix_seconds{0};                          // 0: none yet
  std::array<std::atomic<double>, std::size(kBandwidthKindNames)> bandwidth{};  // 0: not known

  StripedCounters sequences_ended{std::size(kSequenceEndNames)};
  std::atomic<std::uint64_t> dropped_samples{0};

  // Held during the call, so that a replaced source is never called after its owner is gone.
  mutable std::mutex gauge_mutex;
  std::function<GaugeSnapshot()> gauge_source;  // guarded by gauge_mutex
};

Metrics::Metrics(const BuildInfo& build, std::string device, const Clock& clock)
    : impl_(std::make_unique<Impl>(build, std::move(device), clock)) {}

Metrics::~Metrics() = default;

void Metrics::RecordRequest(Method method, int code, Clock::Duration duration) {
  if (code < 0 || code >= kNumCodes) code = kUnknown;
  impl_->Check(impl_->requests.Add(Index(method) * kNumCodes + code, 1));
  if (code == kOk) impl_->Observe(impl_->request_duration, method, Seconds(duration));
}

void Metrics::RecordQueueWait(QueueClass queue_class, Clock::Duration duration) {
  impl_->Observe(impl_->queue_wait, queue_class, Seconds(duration));
}

void Metrics::RecordStage(Stage stage, Clock::Duration duration) {
  impl_->Observe(impl_->stage_duration, stage, Seconds(duration));
}

void Metrics::RecordBatch(std::int64_t requests, std::int64_t sequences, std::int64_t tokens,
                          BatchClosed reason) {
  impl_->Check(impl_->batch_requests.Observe(static_cast<double>(requests)));
  impl_->Check(impl_->batch_sequences.Observe(static_cast<double>(sequences)));
  impl_->Check(impl_->batch_tokens.Observe(static_cast<double>(tokens)));
  impl_->Check(impl_->batch_closed.Add(Index(reason), 1));
}

void Metrics::RecordLaunch(const LaunchRecord& launch) {
  Impl& impl = *impl_;
  const double read_bytes = launch.cost.expected_read_bytes;
  const double write_bytes = launch.cost.expected_write_bytes;
  impl.Check(impl.device_counters.Add(Impl::kLaunches, 1));
  impl.Check(
      impl.device_counters.Add(Impl::kExactReruns, static_cast<double>(launch.exact_reruns)));
  impl.last_completion_unix_seconds.store(
      std::chrono::duration<double>(impl.clock.WallNow().time_since_epoch()).count(),
      std::memory_order_relaxed);

  KernelSeries* series =
      launch.kernel == nullptr ? nullptr : impl.kernels.FindOrAdd(launch.kernel, launch.device);
  if (series == nullptr) return impl.Check(false);
  impl.Check(series->duration.Observe(launch.seconds));
  impl.Check(series->counters.Add(KernelSeries::kBusySeconds, launch.seconds));
  impl.Check(series->counters.Add(KernelSeries::kReadBytes, read_bytes));
  impl.Check(series->counters.Add(KernelSeries::kWriteBytes, write_bytes));
  impl.Check(series->counters.Add(KernelSeries::kFlops, launch.cost.flops));
  series->window.Add(impl.clock.Now(), read_bytes + write_bytes, launch.seconds);
}

void Metrics::RecordRejected(RejectReason reason) {
  impl_->Check(impl_->rejected.Add(Index(reason), 1));
}

void Metrics::AddTransportBytes(TransportPath path, Direction direction, std::int64_t bytes) {
  const int index = Index(path) * static_cast<int>(std::size(kDirectionNames)) + Index(direction);
  impl_->Check(impl_->transport_bytes.Add(index, static_cast<double>(bytes)));
}

void Metrics::RecordSequenceEnd(SequenceEnd end) {
  impl_->Check(impl_->sequences_ended.Add(Index(end), 1));
}

void Metrics::RecordDeviceFault() {
  impl_->Check(impl_->device_counters.Add(Impl::kDeviceFaults, 1));
}

void Metrics::SetBandwidth(BandwidthKind kind, double bytes_per_second) {
  const bool valid = std::isfinite(bytes_per_second) && bytes_per_second >= 0;
  impl_->Check(valid);
  if (valid) impl_->bandwidth[static_cast<std::size_t>(kind)] = bytes_per_second;
}

void Metrics::SetGaugeSource(std::function<GaugeSnapshot()> source) {
  const std::lock_guard lock(impl_->gauge_mutex);
  impl_->gauge_source = std::move(source);
}

std::vector<MetricFamily> Metrics::Families() const noexcept {
  try {
    return impl_->Collect();
  } catch (const std::exception&) {
    // Out of memory: a scrape that fails tells its reader so; the process goes on.
    return {};
  }
}

std::string Metrics::Expose() const {
  try {
    return ExpositionText(Families());
  } catch (const std::exception&) {
    return {};  // as above
  }
}

std::string Metrics::FamiliesAsMarkdown() { return MetricFamiliesAsMarkdown(); }

GaugeSnapshot Metrics::Impl::ReadGauges() const noexcept {
  try {
    const std::lock_guard lock(gauge_mutex);
    if (gauge_source) return gauge_source();
  } catch (const std::exception&) {
    // A source that fails reports zeros, like a missing one: the other families stay readable.
  }
  return {};
}

std::vector<MetricFamily> Metrics::Impl::Collect() const {
  Scrape scrape;
  CollectRequests(scrape);
  CollectBatches(scrape);
  CollectKernels(scrape);
  CollectGauges(scrape);
  scrape.Counters(MetricId::kSequencesEnded, "reason", kSequenceEndNames, sequences_ended);
  scrape.Value(MetricId::kBuildInfo,
               {{"version", build.version},
                {"commit", build.commit},
                {"compiler", build.compiler},
                {"cpu_target", build.cpu_target}},
               1);
  scrape.Value(MetricId::kDroppedSamples, {},
               static_cast<double>(dropped_samples.load(std::memory_order_relaxed)));
  return scrape.Take();
}

// Every combination of labels known in advance is exposed from the start: a counter that appears
// with its first increment hides that increment from rate().
void Metrics::Impl::CollectRequests(Scrape& scrape) const {
  for (int method = 0; method < kNumMethods; ++method) {
    for (int code = 0; code < kNumCodes; ++code) {
      scrape.Value(MetricId::kRequests,
                   {{"method", kMethodNames[method]}, {"code", kCodeNames[code]}},
                   requests.Value(method * kNumCodes + code));
    }
    scrape.Histogram(MetricId::kRequestDuration, {{"method", kMethodNames[method]}},
                     request_duration[static_cast<std::size_t>(method)]);
  }
  for (std::size_t i = 0; i < queue_wait.size(); ++i) {
    scrape.Histogram(MetricId::kQueueWait, {{"class", kQueueClassNames[i]}}, queue_wait[i]);
  }
  for (std::size_t i = 0; i < stage_duration.size(); ++i) {
    scrape.Histogram(MetricId::kStageDuration, {{"stage", kStageNames[i]}}, stage_duration[i]);
  }
  scrape.Counters(MetricId::kRejected, "reason", kRejectNames, rejected);
  int index = 0;
  for (const char* path : kPathNames) {
    for (const char* direction : kDirectionNames) {
      scrape.Value(MetricId::kTransportBytes, {{"path", path}, {"direction", direction}},
                   transport_bytes.Value(index++));
    }
  }
}

void Metrics::Impl::CollectBatches(Scrape& scrape) const {
  scrape.Histogram(MetricId::kBatchRequests, {}, batch_requests);
  scrape.Histogram(MetricId::kBatchSequences, {}, batch_sequences);
  scrape.Histogram(MetricId::kBatchTokens, {}, batch_tokens);
  scrape.Counters(MetricId::kBatchClosed, "reason", kBatchClosedNames, batch_closed);
}

void Metrics::Impl::CollectKernels(Scrape& scrape) const {
  const Clock::TimePoint now = clock.Now();
  for (const KernelSeries* series = kernels.first(); series != nullptr; series = series->next) {
    const Labels labels = {{"kernel", series->kernel}, {"device", series->device}};
    scrape.Histogram(MetricId::kKernelDuration, labels, series->duration);
    scrape.Value(MetricId::kKernelBusy, labels, series->counters.Value(KernelSeries::kBusySeconds));
    scrape.Value(MetricId::kKernelFlops, labels, series->counters.Value(KernelSeries::kFlops));
    scrape.Value(MetricId::kHbmThroughput, labels, series->window.BytesPerSecond(now));
    Labels read_labels = labels;
    read_labels.push_back({"direction", "read"});
    scrape.Value(MetricId::kKernelHbmBytes, std::move(read_labels),
                 series->counters.Value(KernelSeries::kReadBytes));
    Labels write_labels = labels;
    write_labels.push_back({"direction", "write"});
    scrape.Value(MetricId::kKernelHbmBytes, std::move(write_labels),
                 series->counters.Value(KernelSeries::kWriteBytes));
  }
  scrape.Value(MetricId::kKernelLaunches, {}, device_counters.Value(kLaunches));
  scrape.Value(MetricId::kExactReruns, {}, device_counters.Value(kExactReruns));
  scrape.Value(MetricId::kDeviceFaults, {}, device_counters.Value(kDeviceFaults));

  const double completion = last_completion_unix_seconds.load(std::memory_order_relaxed);
  if (completion > 0) {
    scrape.Value(MetricId::kLastKernelCompletion, {{"device", device}}, completion);
  }
  for (std::size_t kind = 0; kind < bandwidth.size(); ++kind) {
    const Labels labels = {{"device", device}, {"kind", kBandwidthKindNames[kind]}};
    if (bandwidth[kind] > 0) scrape.Value(MetricId::kDeviceHbmBandwidth, labels, bandwidth[kind]);
  }
}

void Metrics::Impl::CollectGauges(Scrape& scrape) const {
  const GaugeSnapshot gauges = ReadGauges();
  const auto gauge = [&scrape](MetricId id, Labels labels, std::int64_t value) {
    scrape.Value(id, std::move(labels), static_cast<double>(value));
  };
  gauge(MetricId::kQueueDepth, {}, gauges.queue_requests);
  gauge(MetricId::kQueueBytes, {}, gauges.queue_bytes);
  gauge(MetricId::kRunningRequests, {}, gauges.running_requests);
  gauge(MetricId::kRunningBatches, {}, gauges.running_batches);
  gauge(MetricId::kOpenStreams, {}, gauges.open_streams);
  gauge(MetricId::kConnections, {}, gauges.connections);
  gauge(MetricId::kConnectionsRefused, {}, gauges.connections_refused);
  gauge(MetricId::kSequences, {{"state", "active"}}, gauges.sequences_active);
  gauge(MetricId::kSequences, {{"state", "idle"}}, gauges.sequences_idle);
  gauge(MetricId::kKvCachePages, {{"device", device}, {"state", "used"}},
        gauges.pages_used - gauges.pages_shared);
  gauge(MetricId::kKvCachePages, {{"device", device}, {"state", "shared"}}, gauges.pages_shared);
  gauge(MetricId::kKvCachePages, {{"device", device}, {"state", "free"}}, gauges.pages_free);
  const std::int64_t free_bytes =
      std::max<std::int64_t>(0, gauges.pool_bytes - gauges.used_bytes - gauges.reserved_bytes);
  gauge(MetricId::kKvCacheBytes, {{"device", device}, {"state", "used"}}, gauges.used_bytes);
  gauge(MetricId::kKvCacheBytes, {{"device", device}, {"state", "reserved"}},
        gauges.reserved_bytes);
  gauge(MetricId::kKvCacheBytes, {{"device", device}, {"state", "free"}}, free_bytes);
  gauge(MetricId::kKvCacheHostBytes, {{"state", "used"}}, gauges.host_used_bytes);
  gauge(MetricId::kKvCacheHostBytes, {{"state", "free"}},
        gauges.host_bytes - gauges.host_used_bytes);
  gauge(MetricId::kKvCacheMovedBytes, {{"direction", "to_host"}}, gauges.moved_out_bytes);
  gauge(MetricId::kKvCacheMovedBytes, {{"direction", "from_host"}}, gauges.moved_in_bytes);
  gauge(MetricId::kReady, {}, gauges.ready ? 1 : 0);
  gauge(MetricId::kDraining, {}, gauges.draining ? 1 : 0);
  if (!gauges.gpu.device.empty()) CollectSensors(gauges.gpu, scrape);
}

void Metrics::Impl::CollectSensors(const DeviceReading& gpu, Scrape& scrape) {
  const auto gauge = [&](MetricId id, Labels labels, const std::optional<double>& value) {
    if (!value) return;
    labels.insert(labels.begin(), {"device", gpu.device});
    scrape.Value(id, std::move(labels), *value);
  };
  gauge(MetricId::kDeviceMemory, {{"state", "used"}}, gpu.memory_used_bytes);
  gauge(MetricId::kDeviceMemory, {{"state", "free"}}, gpu.memory_free_bytes);
  gauge(MetricId::kDeviceUtilization, {{"unit", "compute"}}, gpu.compute_utilization);
  gauge(MetricId::kDeviceUtilization, {{"unit", "memory"}}, gpu.memory_utilization);
  gauge(MetricId::kDeviceClock, {{"clock", "sm"}}, gpu.sm_clock_hertz);
  gauge(MetricId::kDeviceClock, {{"clock", "memory"}}, gpu.memory_clock_hertz);
  gauge(MetricId::kDevicePower, {}, gpu.power_watts);
  gauge(MetricId::kDeviceTemperature, {}, gpu.temperature_celsius);
}

}  // namespace attnd
