// The transport's floor: a gRPC server that takes the same calls with the same
// bytes in and out as attnd, and computes nothing. What a scenario costs against it is what gRPC,
// the kernel and this client cost.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "loadtest/scenario.h"

namespace attnd::loadtest {

class EchoServer {
 public:
  // Listens on a free port of 127.0.0.1 and answers with replies of the scenario's shape.
  // UNAVAILABLE: no port.
  static absl::StatusOr<std::unique_ptr<EchoServer>> Start(const Scenario& scenario);
  virtual ~EchoServer() = default;
  EchoServer(const EchoServer&) = delete;
  EchoServer& operator=(const EchoServer&) = delete;

  virtual std::string target() const = 0;
  virtual std::int64_t request_bytes() const = 0;  // of the last request; 0 before one
  virtual std::int64_t reply_bytes() const = 0;

 protected:
  EchoServer() = default;
};

}  // namespace attnd::loadtest
