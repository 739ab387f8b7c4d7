// The gRPC port: who accepts, limits, compression, keepalive, and errors that name the address.
#pragma once

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/connection_acceptor.h"
#include "server/server_config.h"

namespace attnd {

struct GrpcListener {
  std::unique_ptr<grpc::Server> server;
  // Hands connections to `server`: stopped before the server is shut down.
  std::unique_ptr<ConnectionAcceptor> acceptor;
  std::string address;  // with the real port
  int port = 0;         // 0 for a unix socket
};

// Serves `services`, which outlive the listener, on config.listen, for config.max_connections at a
// time.
absl::StatusOr<GrpcListener> Listen(const ServerConfig& config,
                                    const std::vector<grpc::Service*>& services);

}  // namespace attnd
