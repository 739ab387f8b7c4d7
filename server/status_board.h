// What stands behind /statusz: reads the metrics at a steady pace on a thread of its own, keeps the
// last minutes, and tells all of it as JSON.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "prometheus/metric_family.h"
#include "server/clock.h"
#include "server/health_state.h"
#include "server/server_config.h"
#include "server/status_history.h"
#include "server/status_report.h"

namespace attnd {

// Every flag with its value in `config` and its default.
std::vector<StatusFacts::Flag> FlagsInEffect(const ServerConfig& config);

// Thread-safe.
class StatusBoard {
 public:
  // Does not throw; empty where there is nothing to read.
  using ReadFamilies = std::function<std::vector<prometheus::MetricFamily>()>;

  // References outlive the board. The thread runs from here on.
  StatusBoard(StatusFacts facts, const Clock& clock, const HealthState& health,
              ReadFamilies read_families);
  // Stops.
  ~StatusBoard();
  StatusBoard(const StatusBoard&) = delete;
  StatusBoard& operator=(const StatusBoard&) = delete;

  std::string Json() const;
  // Ends the thread; Json goes on. Idempotent.
  void Stop();

 private:
  void Run();

  StatusFacts facts_;
  const Clock& clock_;
  const HealthState& health_;
  const ReadFamilies read_families_;
  StatusHistory history_;

  std::mutex mutex_;
  std::condition_variable stop_changed_;
  bool stop_requested_ ABSL_GUARDED_BY(mutex_) = false;
  std::once_flag stop_once_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace attnd
