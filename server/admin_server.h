// The HTTP port of operators: /metrics, /healthz, /readyz, the page /statusz with its data
// at /statusz.json, POST /drain and a small index at /.
//
// Knows nothing of gRPC or the scheduler: everything that it tells or starts comes in as a
// callback. Threads of its own serve it; connections are closed after one answer, and one that says
// nothing, sends slowly or reads slowly is cut after `io_timeout`. A thread takes a connection when
// its request is complete, and pages, which a client may read slowly, have their own: no peer
// delays health, `num_threads` slow scrapers delay others by `io_timeout`, and none delays a
// request.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace attnd {

// Called on worker threads, several at once.
struct AdminCallbacks {
  struct Readiness {
    bool ready = false;
    std::string reason;  // why not
  };
  std::function<std::string()> metrics_text;  // empty text: answered 500
  std::function<std::string()> status_json;   // the document of /statusz.json
  std::function<Readiness()> readiness;
  std::function<void()> begin_drain;  // idempotent; returns at once
};

struct AdminOptions {
  std::string listen;   // host:port; port 0 picks a free one
  int num_threads = 6;  // for /metrics and /statusz
  std::chrono::milliseconds io_timeout{2000};
};

// Thread-safe.
class AdminServer {
 public:
  // Binds and serves. The error names the address and says why it cannot be used: taken, not one of
  // this machine, not permitted. The port is never shared with another process.
  static absl::StatusOr<std::unique_ptr<AdminServer>> Start(const AdminOptions& options,
                                                            AdminCallbacks callbacks);
  // Stops.
  ~AdminServer();
  AdminServer(const AdminServer&) = delete;
  AdminServer& operator=(const AdminServer&) = delete;

  int port() const;
  // host:port with the real port.
  std::string address() const;
  // Refuses new connections at once and waits for those being served, io_timeout at most. No
  // callback runs afterwards. Idempotent.
  void Stop();

 private:
  struct Impl;
  explicit AdminServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace attnd
