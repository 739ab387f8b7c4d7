// One unary Attend or Decode call: take a place in the queue, receive the message, parse, validate,
// submit, and (from the completion, on the backend's thread) write the reply.
//
// To gRPC the call is a stream of one message each way, the same on the wire: a unary handler is
// called when the message has been received, too late to refuse it.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>

#include "absl/status/statusor.h"
#include "server/arrival_places.h"
#include "server/attention_request.h"
#include "server/inline_reactor.h"
#include "server/reply_encoder.h"
#include "server/service_state.h"

namespace attnd {

class AttentionCall final
    : public InlineReactor<grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>> {
 public:
  using Reactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

  // `kind` says which of the two. Deletes itself when gRPC is done with it.
  static Reactor* Start(ServiceState& state, RequestKind kind,
                        grpc::CallbackServerContext* context);

  // gRPC calls these after Start has returned, never during it; OnDone as the last.
  void OnReadDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  AttentionCall(ServiceState& state, RequestKind kind, grpc::CallbackServerContext* context);
  absl::Status Enter();
  void Run(const grpc::ByteBuffer& wire);
  absl::StatusOr<AttentionRequest> ReadRequest(const grpc::ByteBuffer& wire);
  void Reply(AttentionResult result);
  void End(absl::Status status);

  ServiceState& state_;
  const LiveCall live_;
  const RequestKind kind_;
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer incoming_, reply_;
  CallTiming timing_;     // received: headers, then message
  bool entered_ = false;  // holds a place of --max_unary_in_flight
  ArrivalPlace place_;
  std::uint64_t request_id_ = 0;
  ReplyShape shape_;
  // OnCancel may come while OnReadDone submits: whichever is second cancels.
  std::atomic<bool> cancelled_{false};
  std::atomic<Ticket> ticket_{0};
};

}  // namespace attnd
