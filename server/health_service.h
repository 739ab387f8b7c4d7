// grpc.health.v1.Health, driven by HealthState. gRPC's own implementation is not used: it says
// SERVING from the moment the port is bound, and an open Watch of it holds up Shutdown.
//
// Known names: "" (the server) and "attnd.v1.AttentionService"; both have the server's state. Check
// answers NOT_FOUND for others, Watch SERVICE_UNKNOWN (and stays open, as the protocol asks).
// Requests are received raw and bounded (message_bytes.h).
#pragma once

#include <cstdint>

#include "grpc/health/v1/health.grpc.pb.h"
#include "server/health_state.h"
#include "server/open_streams.h"

namespace attnd {

namespace rpc {
using Health = grpc::health::v1::Health;
using RawHealthService =
    Health::WithRawCallbackMethod_Check<Health::WithRawCallbackMethod_Watch<Health::Service>>;
}  // namespace rpc

// Thread-safe. `state` and `streams` outlive the service, and the service every call.
class HealthService final : public rpc::RawHealthService {
 public:
  // Open Watch streams register in `streams`, so that the server can end them.
  HealthService(HealthState& state, OpenStreams& streams) : state_(state), streams_(streams) {}

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Watch(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request) override;

 private:
  HealthState& state_;
  OpenStreams& streams_;
};

}  // namespace attnd
