// grpc.reflection.v1alpha, so that grpcurl and the like can explore the server. gRPC's own plugin
// is not used: it is a blocking service, whose streams each hold a thread and cannot be ended by
// the server, and whose poller takes events from the other services' threads and hands them over.
#pragma once

#include <string>
#include <vector>

#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "server/open_streams.h"

namespace attnd {

namespace rpc {
using Reflection = grpc::reflection::v1alpha::ServerReflection;
// Requests are received raw and bounded (message_bytes.h).
using RawReflectionService =
    Reflection::WithRawCallbackMethod_ServerReflectionInfo<Reflection::Service>;
}  // namespace rpc

// The answer to one question about the descriptors compiled into this process. Pure.
grpc::reflection::v1alpha::ServerReflectionResponse Reflect(
    const grpc::reflection::v1alpha::ServerReflectionRequest& request,
    const std::vector<std::string>& services);

// Thread-safe. `streams` outlives the service, and the service every call.
class ReflectionService final : public rpc::RawReflectionService {
 public:
  // Full names of the services that the server offers. Open calls register in `streams`.
  ReflectionService(std::vector<std::string> services, OpenStreams& streams)
      : services_(std::move(services)), streams_(streams) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ServerReflectionInfo(
      grpc::CallbackServerContext* context) override;

 private:
  const std::vector<std::string> services_;
  OpenStreams& streams_;
};

}  // namespace attnd
