// The gRPC port: limits, compression, keepalive, and errors that name the address.
#pragma once

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/server_config.h"

namespace attnd {

struct GrpcListener {
  std::unique_ptr<grpc::Server> server;
  std::string address;  // with the real port
  int port = 0;         // 0 for a unix socket
};

// Serves `services`, which outlive the listener, on config.listen. The port is never
// shared with another process. The path of a unix socket is taken over where no server answers on
// it any more.
absl::StatusOr<GrpcListener> Listen(const ServerConfig& config,
                                    const std::vector<grpc::Service*>& services);

}  // namespace attnd
