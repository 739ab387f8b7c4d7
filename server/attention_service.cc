#include "server/attention_service.h"

#include "server/attention_call.h"
#include "server/control_call.h"
#include "server/decode_stream.h"
#include "server/sequence_calls.h"
#include "server/server_info.h"

namespace attnd {
namespace {

template <typename Response>
void RefuseSharedMemory(ControlReply<Response> reply) {
  reply(ErrorStatus(absl::StatusCode::kUnimplemented, v1::REASON_UNSUPPORTED, "",
                    "this server does not offer tensors in shared memory (the feature "
                    "\"shared_memory\" is not listed by GetServerInfo): send them in the message"));
}

}  // namespace

AttentionService::AttentionService(ServiceState& state, const BuildInfo& build,
                                   const BackendLimits& device)
    : state_(state), fixed_info_(FixedServerInfo(state.config(), build, device, state.limits())) {
  ReceiveAfterAdmission("Attend", RequestKind::kAttend);
  ReceiveAfterAdmission("Decode", RequestKind::kDecode);
}

// Tells gRPC that the unary method is a stream, which has a say in when its message is read. Marked
// twice: as streamed, then as served by callbacks.
void AttentionService::ReceiveAfterAdmission(const char* method, RequestKind kind) {
  using Handler = grpc::internal::CallbackBidiHandler<Bytes, Bytes>;
  const auto* service =
      v1::AttendRequest::descriptor()->file()->FindServiceByName("AttentionService");
  const int index = service->FindMethodByName(method)->index();
  const auto start = [this, kind](Context* context) {
    return AttentionCall::Start(state_, kind, context);
  };
  MarkMethodStreamed(index, new Handler(start));
  MarkMethodRawCallback(index, new Handler(start));
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* AttentionService::DecodeStream(
    Context* context) {
  return attnd::DecodeStream::Start(state_, context);
}

AttentionService::Unary* AttentionService::CreateSequence(Context* context, const Bytes* request,
                                                          Bytes* response) {
  return ControlCall<v1::CreateSequenceRequest, v1::CreateSequenceResponse>::Start(
      state_, Method::kCreateSequence, &attnd::CreateSequence, context, *request, response);
}

AttentionService::Unary* AttentionService::ForkSequence(Context* context, const Bytes* request,
                                                        Bytes* response) {
  return ControlCall<v1::ForkSequenceRequest, v1::ForkSequenceResponse>::Start(
      state_, Method::kForkSequence, &attnd::ForkSequence, context, *request, response);
}

AttentionService::Unary* AttentionService::GetSequence(Context* context, const Bytes* request,
                                                       Bytes* response) {
  return ControlCall<v1::GetSequenceRequest, v1::Sequence>::Start(
      state_, Method::kGetSequence, &attnd::GetSequence, context, *request, response);
}

AttentionService::Unary* AttentionService::ListSequences(Context* context, const Bytes* request,
                                                         Bytes* response) {
  return ControlCall<v1::ListSequencesRequest, v1::ListSequencesResponse>::Start(
      state_, Method::kListSequences, &attnd::ListSequences, context, *request, response);
}

AttentionService::Unary* AttentionService::RenewSequences(Context* context, const Bytes* request,
                                                          Bytes* response) {
  return ControlCall<v1::RenewSequencesRequest, v1::RenewSequencesResponse>::Start(
      state_, Method::kRenewSequences, &attnd::RenewSequences, context, *request, response);
}

AttentionService::Unary* AttentionService::TruncateSequences(Context* context, const Bytes* request,
                                                             Bytes* response) {
  return ControlCall<v1::TruncateSequencesRequest, v1::TruncateSequencesResponse>::Start(
      state_, Method::kTruncateSequences, &attnd::TruncateSequences, context, *request, response);
}

AttentionService::Unary* AttentionService::DeleteSequences(Context* context, const Bytes* request,
                                                           Bytes* response) {
  return ControlCall<v1::DeleteSequencesRequest, v1::DeleteSequencesResponse>::Start(
      state_, Method::kDeleteSequences, &attnd::DeleteSequences, context, *request, response);
}

AttentionService::Unary* AttentionService::RegisterSharedMemory(Context* context,
                                                                const Bytes* request,
                                                                Bytes* response) {
  using Response = v1::RegisterSharedMemoryResponse;
  return ControlCall<v1::RegisterSharedMemoryRequest, Response>::Start(
      state_, Method::kRegisterSharedMemory,
      [](const ControlContext&, const v1::RegisterSharedMemoryRequest&,
         ControlReply<Response> reply) { RefuseSharedMemory<Response>(std::move(reply)); },
      context, *request, response);
}

AttentionService::Unary* AttentionService::UnregisterSharedMemory(Context* context,
                                                                  const Bytes* request,
                                                                  Bytes* response) {
  using Response = v1::UnregisterSharedMemoryResponse;
  return ControlCall<v1::UnregisterSharedMemoryRequest, Response>::Start(
      state_, Method::kUnregisterSharedMemory,
      [](const ControlContext&, const v1::UnregisterSharedMemoryRequest&,
         ControlReply<Response> reply) { RefuseSharedMemory<Response>(std::move(reply)); },
      context, *request, response);
}

AttentionService::Unary* AttentionService::ListSharedMemory(Context* context, const Bytes* request,
                                                            Bytes* response) {
  using Response = v1::ListSharedMemoryResponse;
  return ControlCall<v1::ListSharedMemoryRequest, Response>::Start(
      state_, Method::kListSharedMemory,
      [](const ControlContext&, const v1::ListSharedMemoryRequest&, ControlReply<Response> reply) {
        RefuseSharedMemory<Response>(std::move(reply));
      },
      context, *request, response);
}

AttentionService::Unary* AttentionService::GetServerInfo(Context* context, const Bytes* request,
                                                         Bytes* response) {
  using Response = v1::GetServerInfoResponse;
  return ControlCall<v1::GetServerInfoRequest, Response>::Start(
      state_, Method::kGetServerInfo,
      [this](const ControlContext&, const v1::GetServerInfoRequest&, ControlReply<Response> reply) {
        Response info = fixed_info_;
        info.mutable_devices(0)->set_measured_read_bytes_per_second(measured_bandwidth_);
        FillCacheInfo(state_.scheduler().GetSnapshot(), *info.mutable_cache());
        reply(std::move(info));
      },
      context, *request, response);
}

}  // namespace attnd
