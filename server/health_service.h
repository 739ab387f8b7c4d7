// grpc.health.v1.Health, driven by HealthState. gRPC's own implementation is not used: it says
// SERVING from the moment the port is bound, and an open Watch of it holds up Shutdown.
//
// Known names: "" (the server) and "attnd.v1.AttentionService"; both have the server's state. Check
// answers NOT_FOUND for others, Watch SERVICE_UNKNOWN (and stays open, as the protocol asks).
#pragma once

#include <cstdint>

#include "grpc/health/v1/health.grpc.pb.h"
#include "server/health_state.h"
#include "server/open_streams.h"

namespace attnd {

// Thread-safe. `state` and `streams` outlive the service, and the service every call.
class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  // Open Watch streams register in `streams`, so that the server can end them.
  HealthService(HealthState& state, OpenStreams& streams) : state_(state), streams_(streams) {}

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context,
      const grpc::health::v1::HealthCheckRequest* request) override;

 private:
  HealthState& state_;
  OpenStreams& streams_;
};

}  // namespace attnd
