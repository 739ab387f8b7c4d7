// The whole server as one object, for attnd_process.cc and tests in the same process: metrics,
// backend, scheduler, services, both ports, and the order in which they start and stop.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/attention_backend.h"
#include "server/clock.h"
#include "server/scheduler.h"
#include "server/server_config.h"

namespace attnd {

// What tests put in place of the real thing; empty members change nothing.
struct ServerHooks {
  const Clock* clock = nullptr;  // outlives the server
  // Wraps (or replaces) the backend.
  std::function<std::unique_ptr<AttentionBackend>(std::unique_ptr<AttentionBackend>)> wrap_backend;
  // Runs before the self-test, while the ports already answer; an error fails the start.
  std::function<absl::Status()> before_self_test;
};

// Thread-safe.
class AttndServer {
 public:
  // Binds both ports and begins the self-test on a thread of its own: health says NOT_SERVING and
  // calls are answered UNAVAILABLE until it has passed. The error names the flag or the address
  // that cannot be used.
  static absl::StatusOr<std::unique_ptr<AttndServer>> Start(const ServerConfig& config,
                                                            ServerHooks hooks = {});
  // Stops.
  ~AttndServer();
  AttndServer(const AttndServer&) = delete;
  AttndServer& operator=(const AttndServer&) = delete;

  // Waits for the self-test. OK: the server serves. An error: it never will.
  absl::Status WaitUntilReady();

  // Real ones: host:port, or unix:/path.
  const std::string& address() const;
  int port() const;  // 0 for a unix socket
  int admin_port() const;
  // Configuration in effect, nothing left to be chosen by the machine.
  const ServerConfig& config() const;

  // No new sequences; ends when none is left. Idempotent.
  void BeginRetire();
  // Tells every health watcher NOT_SERVING and refuses new work at once; for lame_duck still
  // answers new calls, UNAVAILABLE; finishes admitted work; ends all streams; closes the ports.
  // Returns when all is done, after stop_limit at the latest unless a launch itself takes longer.
  // Idempotent; a second caller waits for the first.
  void Stop();

  Scheduler::Snapshot GetSnapshot() const;
  // Call objects of the attention service that exist, for tests: 0 when no call is open.
  std::int64_t live_calls() const;
  // Prometheus text, as at /metrics.
  std::string MetricsText() const;

 private:
  struct Impl;
  explicit AttndServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace attnd
