// Every metric family of the server, recorded and exposed in one place (names, types, labels and
// help stand in metric_families.cc). Thread-safe. Recording takes no lock: histograms and counters
// are per-thread cells merged at scrape, so that a scrape never delays a request or a launch. No
// exception leaves this class; bad samples (NaN, infinite, negative) are dropped and counted in
// attnd_metrics_dropped_samples_total.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/attention_kernels.h"
#include "prometheus/metric_family.h"
#include "server/build_info.h"
#include "server/clock.h"
#include "server/device_sensors.h"

namespace attnd {

enum class Method : std::uint8_t {
  kAttend,
  kDecode,
  kDecodeStream,  // kDecodeStream counts each message of a stream
  kCreateSequence,
  kForkSequence,
  kGetSequence,
  kListSequences,
  kRenewSequences,
  kTruncateSequences,
  kDeleteSequences,
  kRegisterSharedMemory,
  kUnregisterSharedMemory,
  kListSharedMemory,
  kGetServerInfo,
};
const char* MethodName(Method method);

enum class QueueClass : std::uint8_t { kDecode, kPrefill };
enum class Stage : std::uint8_t {
  kWireDecode,
  kQueue,
  kHostToDevice,
  kKernel,
  kDeviceToHost,
  kWireEncode
};
enum class BatchClosed : std::uint8_t { kQueueEmpty, kSequences, kTokens, kChunk, kAlone, kShape };
enum class RejectReason : std::uint8_t {
  kQueueFull,
  kCacheFull,
  kQuota,
  kWorkspace,
  kDeadline,
  kDraining,
  kNotReady,
  kMessageSize
};
enum class TransportPath : std::uint8_t { kInBand, kSharedMemory };
enum class Direction : std::uint8_t { kIn, kOut };
enum class BandwidthKind : std::uint8_t { kMeasured, kDatasheet };
enum class SequenceEnd : std::uint8_t { kDeleted, kExpired, kEvicted };

struct LaunchRecord {
  const char* kernel = "";  // kernel table name
  std::string_view device;  // BackendLimits::device_name
  double seconds = 0;
  kernels::KernelCost cost;  // expected bytes are exported, HELP says modelled
  std::int64_t exact_reruns = 0;
};

// Read at each scrape.
struct GaugeSnapshot {
  std::int64_t queue_requests = 0, queue_bytes = 0, running_requests = 0, running_batches = 0,
               open_streams = 0, connections = 0, connections_refused = 0;
  std::int64_t sequences_active = 0, sequences_idle = 0;
  // attnd_kv_cache_pages{device,state}. Used: with one reference or more, shared ones included;
  // shared: with two or more; free: whole slabs not cut into pages.
  std::int64_t pages_used = 0, pages_shared = 0, pages_free = 0;
  // Host memory for idle sequences; what has moved there and back since the start.
  std::int64_t host_bytes = 0, host_used_bytes = 0, moved_out_bytes = 0, moved_in_bytes = 0;
  // Used and reserved bytes do not overlap.
  std::int64_t pool_bytes = 0, used_bytes = 0, reserved_bytes = 0;
  bool ready = false, draining = false;
  DeviceReading gpu;  // without a device: no series
};

class Metrics {
 public:
  explicit Metrics(const BuildInfo& build, std::string device, const Clock& clock);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // `code` is the gRPC status code of the answer, OK included; what is no gRPC code counts as
  // UNKNOWN. The duration enters attnd_request_duration_seconds for OK answers only.
  void RecordRequest(Method method, int code, Clock::Duration duration);
  void RecordQueueWait(QueueClass queue_class, Clock::Duration duration);
  void RecordStage(Stage stage, Clock::Duration duration);
  void RecordBatch(std::int64_t requests, std::int64_t sequences, std::int64_t tokens,
                   BatchClosed reason);
  void RecordLaunch(const LaunchRecord& launch);
  void RecordRejected(RejectReason reason);
  void AddTransportBytes(TransportPath path, Direction direction, std::int64_t bytes);
  void RecordSequenceEnd(SequenceEnd end);
  void RecordDeviceFault();
  void SetBandwidth(BandwidthKind kind, double bytes_per_second);  // 0: not known

  // Called at each scrape, off the hot path, one call at a time. May be replaced; an empty function
  // reports zeros. Once this returns the former source is neither running nor called again.
  void SetGaugeSource(std::function<GaugeSnapshot()> source);

  // Every family as it is now; empty where memory is short.
  std::vector<prometheus::MetricFamily> Families() const noexcept;

  // Those as Prometheus text, format 0.0.4; empty where memory is short.
  std::string Expose() const;

  // The text of docs/metrics.md: a table of every family (name, type, labels, help).
  static std::string FamiliesAsMarkdown();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace attnd
