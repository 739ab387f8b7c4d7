// The rpcs of attnd.v1.AttentionService, one line each: which call object serves which method.
//
// Every method is received raw. Attend, Decode and DecodeStream are parsed by hand, so that tensors
// are never copied into protobuf strings (attention_call.h, decode_stream.h); Attend and Decode are
// admitted before their message is received. The others are parsed by protobuf after a look at
// their size (control_call.h).
#pragma once

#include <atomic>
#include <cstdint>

#include "attnd/v1/attention.grpc.pb.h"
#include "server/attention_backend.h"
#include "server/build_info.h"
#include "server/service_state.h"

namespace attnd {

namespace rpc {
using Base = v1::AttentionService;
using Tensors = Base::WithRawCallbackMethod_DecodeStream<Base::Service>;
using Sequences = Base::WithRawCallbackMethod_CreateSequence<
    Base::WithRawCallbackMethod_ForkSequence<Base::WithRawCallbackMethod_GetSequence<
        Base::WithRawCallbackMethod_ListSequences<Base::WithRawCallbackMethod_RenewSequences<
            Base::WithRawCallbackMethod_TruncateSequences<
                Base::WithRawCallbackMethod_DeleteSequences<Tensors>>>>>>>;
using RawService = Base::WithRawCallbackMethod_RegisterSharedMemory<
    Base::WithRawCallbackMethod_UnregisterSharedMemory<Base::WithRawCallbackMethod_ListSharedMemory<
        Base::WithRawCallbackMethod_GetServerInfo<Sequences>>>>;
}  // namespace rpc

// Thread-safe. Everything passed in outlives the service, and the service every call.
class AttentionService final : public rpc::RawService {
 public:
  AttentionService(ServiceState& state, const BuildInfo& build, const BackendLimits& device);

  // Told by GetServerInfo from then on.
  void SetMeasuredBandwidth(double read_bytes_per_second) {
    measured_bandwidth_ = read_bytes_per_second;
  }

  using Context = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;
  using Unary = grpc::ServerUnaryReactor;

  grpc::ServerBidiReactor<Bytes, Bytes>* DecodeStream(Context* context) override;
  Unary* CreateSequence(Context* context, const Bytes* request, Bytes* response) override;
  Unary* ForkSequence(Context* context, const Bytes* request, Bytes* response) override;
  Unary* GetSequence(Context* context, const Bytes* request, Bytes* response) override;
  Unary* ListSequences(Context* context, const Bytes* request, Bytes* response) override;
  Unary* RenewSequences(Context* context, const Bytes* request, Bytes* response) override;
  Unary* TruncateSequences(Context* context, const Bytes* request, Bytes* response) override;
  Unary* DeleteSequences(Context* context, const Bytes* request, Bytes* response) override;
  Unary* RegisterSharedMemory(Context* context, const Bytes* request, Bytes* response) override;
  Unary* UnregisterSharedMemory(Context* context, const Bytes* request, Bytes* response) override;
  Unary* ListSharedMemory(Context* context, const Bytes* request, Bytes* response) override;
  Unary* GetServerInfo(Context* context, const Bytes* request, Bytes* response) override;

 private:
  void ReceiveAfterAdmission(const char* method, RequestKind kind);

  ServiceState& state_;
  const v1::GetServerInfoResponse fixed_info_;
  std::atomic<double> measured_bandwidth_{0};
};

}  // namespace attnd
